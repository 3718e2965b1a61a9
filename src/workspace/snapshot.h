/* Workspaces in mode snapshot: copied into the guest's own disk at a start, and back afterwards.
 *
 * Where a copy stands is in sandboxes/NAME/workspace.json, which no monitor can write:
 *
 *     (none) ─▶ copying ─▶ out ─▶ replacing ─▶ same ─▶ copying ...
 *
 *     copying     it is on its way into the guest: what the guest has is worth nothing
 *     out         the guest has it, and may have changed it; `base` is what the host's looked like
 *     replacing   the new tree is complete beside the old one, and about to take its place
 *     same        guest and host have the same; `base` again
 *
 * A sync starts the sandbox, if it does not run, without anybody being told: nothing runs in it but
 * the agent, so the tree is at rest, however the sandbox ended. The tree is built beside the
 * workspace, brought to disk, and takes its place by one exchange of names: a crash at any moment
 * leaves the old workspace or the new one, whole. What then has the old place is looked at once
 * more: if somebody had changed it since it was copied in, or the sandbox had crashed, it is kept
 * under another name, NAME.conflict-DATE, and the user is told; else it goes.
 *
 * Everything here is done under the lock of the sandbox's name, and of the workspace.
 */
#ifndef MSB_WORKSPACE_SNAPSHOT_H
#define MSB_WORKSPACE_SNAPSHOT_H

#include "store/store.h"

/* Between a sandbox's READY and its acknowledgement: the workspace goes in, unless the guest has
 * it, or has changes of its own that were not synced. */
int snapshot_enter(const struct store *s, int dirfd, const struct sandbox_spec *spec, warn_fn warn,
                   struct err *e);

/* The guest may have what the host has not. */
bool snapshot_is_out(int dirfd);

/* Copies back, by way of a sandbox that can be connected to. max: 0 = what the spec says. crashed:
 * what the guest has may be torn. still: it runs on, and the next sync will find more. */
struct snapshot_sync {
    uint64_t max;
    bool crashed, still;
    warn_fn warn;
};
int snapshot_leave(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                   const struct snapshot_sync *how, struct err *e);

#endif
