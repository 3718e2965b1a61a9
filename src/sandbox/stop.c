/* stop and remove. */
#include "jail/cgroup.h"
#include "sandbox/account.h"
#include "sandbox/bucket.h"
#include "sandbox/held.h"
#include "sandbox/lifecycle.h"
#include "sandbox/monitor.h"
#include "sandbox/sync.h"
#include "store/audit.h"
#include "util/loop.h"

#include <errno.h>

int sandbox_stop(const struct store *s, const char *name, uint64_t grace_ms, bool force,
                 warn_fn warn, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    int r = held_take(s, name, &h, e);
    if (r == -ENOENT)
        (void)held_clear_leftover(&h, NULL);
    if (r < 0)
        return r;
    if (force)
        grace_ms = 0;
    uint64_t began = now_ns();
    json_t *used = h.sb.state.pid ? account_take(&h.sb) : NULL;
    r = monitor_terminate(&h.sb, grace_ms, e);
    if (h.sb.state.pid)
        audit_done(s, grace_ms ? "stop" : "kill", name, used, began, r, e);
    if (r == 0)
        cgroup_forget(h.sb.dirfd);
    if (r == 0 && grace_ms)
        r = sync_workspace(s, &h.sb, 0, warn, e);
    if (r == 0 && grace_ms)
        bucket_leave(s, h.sb.spec.workspace.name, warn);
    if (r == 0 && h.sb.spec.ephemeral) {
        r = held_remove(&h, e);
        audit_done(s, "remove", name, NULL, 0, r, e);
    }
    return r;
}

/* Syncs changes in the workspace to the host first, unless they may be lost. */
static int sync_or_lose(const struct store *s, struct sandbox *sb, bool force, warn_fn warn,
                        struct err *e)
{
    if (!force) {
        int r = sync_workspace(s, sb, 0, warn, e);
        if (r < 0)
            err_hint(e, "remove it without a sync: msb rm -f %s", sb->spec.name);
        return r;
    }
    sync_warn_lost(s, sb->spec.name, warn);
    return 0;
}

/* A sandbox that cannot be read can only be removed. */
static int remove_damaged(struct held *h, bool force, int why, warn_fn warn, struct err *e)
{
    if (!force) {
        err_hint(e, "remove it with `msb rm -f %s`", h->lock.name);
        return why;
    }
    err_clear(e);
    sync_warn_lost(h->lock.store, h->lock.name, warn);
    return held_clear_leftover(h, e);
}

static int remove_whole(struct held *h, bool force, warn_fn warn, struct err *e)
{
    struct sandbox *sb = &h->sb;
    const char *name = h->lock.name;
    int r = 0;
    if (!force)
        monitor_wait_ending(sb);
    if (sb->state.pid && !force) {
        r = err_set(e, EBUSY, "sandbox still running: cannot remove sandbox \"%s\": status is %s",
                    name, status_name(sb->state.status));
        err_hint(e, "stop it first with `msb stop %s`, or use `msb rm -f %s`", name, name);
    } else if (sb->state.pid) {
        r = monitor_terminate(sb, 0, e);
    }
    if (r == 0)
        r = sync_or_lose(h->lock.store, sb, force, warn, e);
    return r < 0 ? r : held_remove(h, e);
}

int sandbox_remove(const struct store *s, const char *name, bool force, warn_fn warn, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    uint64_t began = now_ns();
    int r = held_take(s, name, &h, e);
    if (r == -ENOENT)
        (void)held_clear_leftover(&h, NULL);
    if (h.lock.fd < 0 || r == -ENOENT)
        return r;
    json_t *used = r == 0 ? account_take(&h.sb) : NULL;
    r = r < 0 ? remove_damaged(&h, force, r, warn, e) : remove_whole(&h, force, warn, e);
    audit_done(s, "remove", name, used, began, r, e);
    return r;
}
