/* Workspaces in mode snapshot: copied into the guest's own disk at a start, and back afterwards.
 *
 * Where a copy stands is in sandboxes/NAME/workspace.json, which no monitor can write:
 *
 *     (none) ─▶ copying ─▶ out ─▶ replacing ─▶ same ─▶ copying ...
 *
 *     copying     it is being copied into the guest; the guest's copy is worthless
 *     out         the guest has it, and may have changed it; `base` is what the host's looked like
 *     replacing   the new tree is complete beside the old one, and about to replace it
 *     same        guest and host have the same; `base` again
 *
 * A sync boots the sandbox, if it is not running, for itself alone: nothing runs in it but the agent,
 * so the tree is at rest, however the sandbox ended. The new tree is built beside the workspace,
 * brought to disk, and replaces it by one exchange of names: a crash at any moment leaves the old
 * workspace or the new one, whole. The old tree is then checked once more: if it had been changed
 * since it was copied in, or the sandbox had crashed, it is kept as NAME.conflict-DATE, and the user
 * is told; otherwise it is removed.
 *
 * Everything here is done under the lock of the sandbox's name, and of the workspace.
 */
#pragma once

#include "store/store.h"

/* Between a sandbox's READY and its acknowledgement: copies the workspace in, unless the guest has
 * it already, or has changes that were not synced. */
int snapshot_enter(const struct store *s, int dirfd, const struct sandbox_spec *spec, warn_fn warn,
                   struct err *e);

/* The guest may have changes that the host lacks. */
bool snapshot_is_out(int dirfd);

/* Copies back from a sandbox that can be connected to. max: 0 = what the spec says. crashed: the
 * guest's copy may be incomplete. still: it runs on, and the next sync may find more. */
struct snapshot_sync {
    uint64_t max;
    bool crashed, still;
    warn_fn warn;
};
int snapshot_leave(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                   const struct snapshot_sync *how, struct err *e);
