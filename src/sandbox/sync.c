#include "sandbox/sync.h"

#include "engine/engine.h"
#include "launch/launch.h"
#include "sandbox/held.h"
#include "sandbox/lifecycle.h"
#include "sandbox/monitor.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "workspace/snapshot.h"

enum { END_WAIT_MS = 5000 };

/* A guest with nothing but its disk: no mounts, no network, no time limits. */
static struct sandbox_spec bare(const struct sandbox_spec *spec)
{
    struct sandbox_spec b = *spec;
    b.n_mounts = 0;
    b.n_scripts = 0;
    b.write_paths = (struct strlist){0};
    spec_security_init(&b.security);
    b.secrets = (struct strlist){0};
    b.vsocks = (struct spec_vsocks){0};
    b.workspace = (struct spec_workspace){0};
    spec_net_init(&b.net);
    b.net.off = true;
    b.idle_timeout_ms = b.max_duration_ms = 0;
    b.ephemeral = false;
    return b;
}

/* Boots it just for the sync. */
static int sync_stopped(const struct store *s, struct sandbox *sb, struct snapshot_sync *how,
                        struct err *e)
{
    struct sandbox_spec spec = bare(&sb->spec);
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    struct launch l;
    int r = engine_choose(spec.engine, &engine, e);
    if (r == 0)
        r = launch_begin(&l, s, sb->dirfd, &spec, &(struct launch_options){.engine = &engine}, e);
    if (r == 0)
        r = launch_wait(&l, e);
    if (r < 0)
        return err_wrap(e, r, "cannot sync the workspace of sandbox '%s'", sb->spec.name);
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    r = snapshot_leave(s, sb->dirfd, &sb->spec, how, e);
    launch_dismiss(&l);
    if (pidfd >= 0)
        (void)monitor_wait(pidfd, END_WAIT_MS);
    return r;
}

int sync_workspace(const struct store *s, struct sandbox *sb, uint64_t max, warn_fn warn,
                   struct err *e)
{
    if (!spec_has_snapshot(&sb->spec) || !snapshot_is_out(sb->dirfd))
        return 0;
    sb->state.pid = monitor_lock_holder(sb->dirfd);
    struct snapshot_sync how = {.max = max,
                                .crashed = sb->state.status == STATUS_CRASHED,
                                .still = sb->state.pid != 0,
                                .warn = warn};
    if (!how.still)
        return sync_stopped(s, sb, &how, e);
    how.crashed = false;
    return snapshot_leave(s, sb->dirfd, &sb->spec, &how, e);
}

void sync_warn_lost(const struct store *s, const char *name, warn_fn warn)
{
    AUTO_CLOSE int dirfd = dir_open_at(s->sandboxes_fd, name);
    if (dirfd >= 0 && snapshot_is_out(dirfd) && warn)
        warn("changes to its workspace that were not synced are lost");
}

int sandbox_sync(const struct store *s, const char *name, uint64_t max, warn_fn warn, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    int r = held_take(s, name, &h, e);
    if (r < 0)
        return r;
    monitor_wait_ending(&h.sb);
    return sync_workspace(s, &h.sb, max, warn, e);
}
