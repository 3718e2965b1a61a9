/* Workspaces in snapshot mode: copied to the guest's own disk at the start, and back afterwards.
 *
 * A copy's state is in sandboxes/NAME/workspace.json, which no monitor can write:
 *
 *     (none) ─▶ copying ─▶ out ─▶ replacing ─▶ same ─▶ copying ...
 *
 *     copying     it is being copied into the guest; the guest's copy is worthless
 *     out         the guest has it, and may have changed it; `base` is what the host's looked like
 *     replacing   the new tree is complete beside the old one, and about to replace it
 *     same        guest and host are the same; `base` as above
 *
 * A sync boots the sandbox just for itself if it is not running: nothing but the agent runs in it,
 * so the tree is at rest, however the sandbox ended. The new tree is built beside the workspace,
 * synced to disk, and takes its place by one atomic exchange of names: a crash leaves either the
 * old workspace or the new one, complete. The old tree is then checked once more: if it had been
 * changed since it was copied in, or the sandbox had crashed, it is kept as NAME.conflict-DATE, and
 * the user is told; otherwise it is removed.
 *
 * Everything here is done under the lock of the sandbox's name, and of the workspace.
 */
#pragma once

#include "store/store.h"

/* Between a sandbox's READY and its acknowledgement: copies the workspace in, unless the guest has
 * it already, or has changes that were not synced. */
int snapshot_enter(const struct store *s, int dirfd, const struct sandbox_spec *spec, warn_fn warn,
                   struct err *e);

/* Whether the guest may have changes that the host lacks. */
bool snapshot_is_out(int dirfd);

/* Copies back from a sandbox that can be connected to. max: 0 = the spec's limit. crashed: the
 * guest's copy may be incomplete. still: it keeps running, and the next sync may find more. */
struct snapshot_sync {
    uint64_t max;
    bool crashed, still;
    warn_fn warn;
};
int snapshot_leave(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                   const struct snapshot_sync *how, struct err *e);
