#include "sandbox/lifecycle.h"

#include "client/request.h"
#include "engine/engine.h"
#include "image/store/upper.h"
#include "launch/launch.h"
#include "store/audit.h"
#include "store/volume.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "workspace/snapshot.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    KILL_WAIT_MS = 5000,  /* how long a killed monitor may take to be gone */
    STOP_SLACK_MS = 5000, /* beyond the grace period, before we kill */
    CONNECT_TRIES = 200,  /* a monitor that is just starting or ending, 5 ms apart */
};

/* --- the monitor's process ------------------------------------------------------------------ */

/* A descriptor for the live monitor, or -ESRCH. The lock is asked again once we hold it, so that
 * it cannot be a stranger with a recycled pid. */
static int monitor_pidfd(int dirfd)
{
    pid_t pid = monitor_lock_holder(dirfd);
    if (pid <= 0)
        return pid < 0 ? pid : -ESRCH;
    AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return -errno;
    return monitor_lock_holder(dirfd) == pid ? steal_fd(&fd) : -ESRCH;
}

/* True when the process has ended within that time; -1 = wait for ever. */
static bool wait_gone(int pidfd, int64_t timeout_ms)
{
    uint64_t deadline = now_ns() + (uint64_t)MAX(timeout_ms, 0) * 1000000ULL;
    for (;;) {
        uint64_t now = now_ns();
        int left = timeout_ms < 0    ? -1
                   : now >= deadline ? 0
                                     : (int)((deadline - now) / 1000000 + 1);
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int r = poll(&p, 1, left);
        if (r > 0)
            return true;
        if (r == 0 || errno != EINTR)
            return false;
    }
}

static int kill_monitor(struct sandbox *sb, int pidfd, struct err *e)
{
    if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return err_sys(e, errno, "cannot kill the monitor of sandbox '%s'", sb->spec.name);
    if (!wait_gone(pidfd, KILL_WAIT_MS)) {
        err_set(e, ETIMEDOUT, "the monitor of sandbox '%s' does not die", sb->spec.name);
        err_hint(e, "look at process %d: it may hang in a file system", (int)sb->state.pid);
        return -ETIMEDOUT;
    }
    /* Killed on purpose: not a crash. */
    struct sandbox_state st = sb->state;
    st.status = STATUS_STOPPED;
    st.updated_ns = realtime_ns();
    (void)snprintf(st.reason, sizeof(st.reason), "killed on request");
    AUTO_CLOSE int run = openat(sb->dirfd, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (run >= 0)
        (void)state_save(run, &st);
    return 0;
}

/* Ends the monitor, if one lives: in order within grace_ms, by force after that. */
static int end_monitor(struct sandbox *sb, uint64_t grace_ms, bool force, struct err *e)
{
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    if (pidfd == -ESRCH)
        return 0;
    if (pidfd < 0)
        return err_sys(e, -pidfd, "cannot watch the monitor of sandbox '%s'", sb->spec.name);
    if (force || grace_ms == 0)
        return kill_monitor(sb, pidfd, e);
    /* A monitor that cannot be asked is ending, or hangs: both end below. */
    (void)request_stop(sb->dirfd, grace_ms);
    if (wait_gone(pidfd, (int64_t)grace_ms + STOP_SLACK_MS))
        return 0;
    return kill_monitor(sb, pidfd, e);
}

/* --- create, start -------------------------------------------------------------------------- */

static void warn_about_cpus(const struct sandbox_spec *spec, const struct engine_ops *engine,
                            warn_fn warn)
{
    if (!warn || spec->cpus <= engine->max_cpus)
        return;
    char text[128], most[16] = "one CPU";
    if (engine->max_cpus > 1)
        (void)snprintf(most, sizeof(most), "%d CPUs", engine->max_cpus);
    (void)snprintf(text, sizeof(text), "the %s engine runs %s; --cpus %g has no further effect",
                   engine->name, most, spec->cpus);
    warn(text);
}

/* The rest of a creation that died may have a monitor that is still on its way out. */
static void end_leftover(const struct store *s, const char *name)
{
    AUTO_CLOSE int dirfd =
        openat(s->sandboxes_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    AUTO_CLOSE int pidfd = dirfd < 0 ? -1 : monitor_pidfd(dirfd);
    if (pidfd >= 0) {
        (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
        (void)wait_gone(pidfd, KILL_WAIT_MS);
    }
}

/* Under the name's lock, which keeps everybody else from sweeping: sandbox_open() found nothing of
 * worth, or a creation failed. What is left goes, a monitor first. */
static void clear_leftover(const struct store *s, const char *name)
{
    end_leftover(s, name);
    (void)sandbox_dir_remove(s, name, NULL);
}

static int choose_engine(const struct sandbox_spec *spec, struct engine_choice *ret, warn_fn warn,
                         struct err *e);

/* --- workspaces that are copied -------------------------------------------------------------- */

/* A guest with nothing in it but its disk: no mounts, no network, no limits of time. */
static struct sandbox_spec bare(const struct sandbox_spec *spec)
{
    struct sandbox_spec b = *spec;
    b.n_mounts = 0;
    b.n_scripts = 0;
    b.write_paths = (struct strlist){0};
    b.secrets = (struct strlist){0};
    b.vsocks = (struct spec_vsocks){0};
    b.workspace = (struct spec_workspace){0};
    spec_net_init(&b.net);
    b.net.off = true;
    b.idle_timeout_ms = b.max_duration_ms = 0;
    b.ephemeral = false;
    return b;
}

/* Boots it for nobody but us. */
static int sync_stopped(const struct store *s, struct sandbox *sb, struct snapshot_sync *how,
                        struct err *e)
{
    struct sandbox_spec spec = bare(&sb->spec);
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    struct launch l;
    int r = choose_engine(&spec, &engine, NULL, e);
    if (r == 0)
        r = launch_begin(&l, s, sb->dirfd, &spec, &(struct launch_options){.engine = &engine}, e);
    if (r == 0)
        r = launch_wait(&l, e);
    if (r < 0)
        return err_wrap(e, r, "the workspace of sandbox '%s' is not synced", sb->spec.name);
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    r = snapshot_leave(s, sb->dirfd, &sb->spec, how, e);
    launch_dismiss(&l);
    if (pidfd >= 0)
        (void)wait_gone(pidfd, KILL_WAIT_MS);
    return r;
}

/* Under the name's lock. */
static int sync_workspace(const struct store *s, struct sandbox *sb, uint64_t max, warn_fn warn,
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

/* --- create, start, continued ---------------------------------------------------------------- */

/* Under the name's lock: whatever stands in the way of a new sandbox of that name. */
static int make_way(const struct store *s, const char *name, const struct create_options *opt,
                    warn_fn warn, struct err *e)
{
    struct sandbox old;
    int r = sandbox_open(s, name, &old, e);
    if (r == 0) {
        if (!opt->replace) {
            sandbox_close(&old);
            return err_set(e, EEXIST,
                           "sandbox already exists: sandbox '%s' already exists; remove it, start "
                           "the stopped sandbox, or recreate with .replace()",
                           name);
        }
        r = end_monitor(&old, opt->replace_grace_ms, false, e);
        if (r == 0)
            r = sync_workspace(s, &old, 0, warn, e);
        sandbox_close(&old);
        audit_done(s, "remove", name, json_pack("{s:b}", "replaced", 1), r, e);
    } else if (r == -ENOENT || opt->replace) { /* nothing, or damaged beyond use */
        end_leftover(s, name);
        err_clear(e);
        r = 0;
    }
    return r < 0 ? r : sandbox_dir_remove(s, name, e);
}

static int make_disk(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                     struct err *e)
{
    if (spec->root_disk != ROOT_DISK_MANAGED)
        return 0;
    AUTO_CLOSE int cache = store_cache_open(s, e);
    if (cache < 0)
        return cache;
    return upper_create(cache, dirfd, "upper.ext4", spec->root_disk_bytes, e);
}

static int prepare(int dirfd, const struct create_options *create, struct err *e)
{
    int sock = sandbox_connect(dirfd);
    if (sock < 0)
        return err_sys(e, -sock, "cannot connect to the new sandbox");
    return create->prepare(create->prepare_ctx, sock, e);
}

/* Writes the spec while the guest boots: reaching the disk takes as long as a good part of that. */
static int boot(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                const struct launch_options *opt, const struct create_options *create,
                struct err *e)
{
    struct launch l;
    int r = launch_begin(&l, s, dirfd, spec, opt, e);
    if (r < 0)
        return r;
    int saved = opt->creating ? spec_save(dirfd, spec, true, e) : 0;
    if (saved < 0) {
        close_fd(&l.report_fd); /* unacknowledged: the monitor undoes it */
        return saved;
    }
    r = launch_wait(&l, e);
    if (r < 0)
        return r;
    if (create && create->prepare)
        r = prepare(dirfd, create, e);
    if (r == 0 && spec_has_snapshot(spec))
        r = snapshot_enter(s, dirfd, spec, opt->warn, e);
    if (r == 0)
        return launch_finish(&l, e);
    launch_dismiss(&l);
    return r;
}

static int choose_engine(const struct sandbox_spec *spec, struct engine_choice *ret, warn_fn warn,
                         struct err *e)
{
    int r = engine_choose(spec->engine, ret, e);
    if (r == 0 && ret->warning[0] && warn)
        warn(ret->warning);
    return r;
}

int sandbox_create(const struct store *s, struct sandbox_spec *spec,
                   const struct create_options *opt, warn_fn warn, struct err *e)
{
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    AUTO_CLOSE int volumes = -1;
    int r = volume_hold(s, spec, &volumes, e);
    if (r == 0)
        r = volume_settle(s, spec, e);
    if (r == 0)
        r = workspace_settle(s, spec, e);
    if (r == 0)
        r = choose_engine(spec, &engine, warn, e);
    if (r < 0)
        return r;
    struct name_lock lock;
    r = name_lock_take(s, spec->name, &lock, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dirfd = -1;
    spec->created_ns = realtime_ns();
    r = make_way(s, spec->name, opt, warn, e);
    bool mine = r == 0; /* from here on the directory is ours to undo */
    if (r == 0)
        r = sandbox_dir_make(s, spec->name, &dirfd, e);
    if (r == 0)
        r = make_disk(s, dirfd, spec, e);
    if (r == 0)
        r = boot(s, dirfd, spec,
                 &(struct launch_options){.engine = &engine,
                                          .creating = true,
                                          .stop_when_idle = opt->stop_when_idle,
                                          .warn = warn},
                 opt, e);
    engine_choice_close(&engine); /* who may open few files needs each of them to clean up */
    if (r < 0 && mine && dirfd >= 0)
        clear_leftover(s, spec->name);
    name_lock_drop(s, &lock, r < 0 && mine);
    audit_done(s, "create", spec->name, audit_spec(spec), r, e);
    if (r == 0)
        warn_about_cpus(spec, engine.ops, warn);
    return r;
}

/* One that is ending has ended afterwards, unless that takes too long. */
static void wait_ending(struct sandbox *sb)
{
    enum status st = sb->state.status;
    if (!sb->state.pid || (st != STATUS_DRAINING && st != STATUS_STOPPED && st != STATUS_CRASHED))
        return;
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    if (pidfd >= 0)
        (void)wait_gone(pidfd, STOP_GRACE_DEFAULT_MS + STOP_SLACK_MS);
    sb->state.pid = monitor_lock_holder(sb->dirfd);
}

int sandbox_sync(const struct store *s, const char *name, uint64_t max, warn_fn warn, struct err *e)
{
    struct name_lock lock;
    struct sandbox sb;
    int r = name_lock_take(s, name, &lock, e);
    if (r < 0)
        return r;
    r = sandbox_open(s, name, &sb, e);
    bool gone = r == -ENOENT;
    if (r == 0) {
        wait_ending(&sb);
        r = sync_workspace(s, &sb, max, warn, e);
        sandbox_close(&sb);
    }
    name_lock_drop(s, &lock, gone);
    return r;
}

/* It ended by itself, and nobody has asked since. What cannot be synced now stays in the guest. */
static void sync_before_start(const struct store *s, struct sandbox *sb, warn_fn warn)
{
    struct err why = {0};
    if (sync_workspace(s, sb, 0, warn, &why) < 0 && warn)
        warn(why.msg);
}

static int start_locked(const struct store *s, const char *name, bool stop_when_idle, warn_fn warn,
                        struct err *e)
{
    struct sandbox sb;
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0)
        return r;
    wait_ending(&sb);
    if (sb.state.pid)
        r = err_set(e, EBUSY, "sandbox still running: cannot start sandbox '%s': already running",
                    name);
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    if (r == 0)
        sync_before_start(s, &sb, warn);
    if (r == 0)
        r = choose_engine(&sb.spec, &engine, warn, e);
    if (r == 0)
        r = boot(s, sb.dirfd, &sb.spec,
                 &(struct launch_options){
                     .engine = &engine, .stop_when_idle = stop_when_idle, .warn = warn},
                 NULL, e);
    if (r == 0)
        warn_about_cpus(&sb.spec, engine.ops, warn);
    if (r != -EBUSY)
        audit_done(s, "start", name, audit_spec(&sb.spec), r, e);
    sandbox_close(&sb);
    return r;
}

static int start(const struct store *s, const char *name, bool stop_when_idle, warn_fn warn,
                 struct err *e)
{
    struct name_lock lock;
    int r = name_lock_take(s, name, &lock, e);
    if (r < 0)
        return r;
    r = start_locked(s, name, stop_when_idle, warn, e);
    name_lock_drop(s, &lock, r == -ENOENT);
    return r;
}

int sandbox_start(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    return start(s, name, false, warn, e);
}

/* --- stop, remove --------------------------------------------------------------------------- */

int sandbox_stop(const struct store *s, const char *name, uint64_t grace_ms, bool force,
                 warn_fn warn, struct err *e)
{
    struct name_lock lock;
    struct sandbox sb;
    int r = name_lock_take(s, name, &lock, e);
    if (r < 0)
        return r;
    r = sandbox_open(s, name, &sb, e);
    bool gone = r == -ENOENT;
    if (gone)
        clear_leftover(s, name);
    if (r == 0) {
        r = end_monitor(&sb, grace_ms, force, e);
        if (sb.state.pid)
            audit_done(s, force || grace_ms == 0 ? "kill" : "stop", name, NULL, r, e);
        if (r == 0 && !force && grace_ms)
            r = sync_workspace(s, &sb, 0, warn, e);
        bool ephemeral = sb.spec.ephemeral;
        sandbox_close(&sb);
        if (r == 0 && ephemeral) {
            r = sandbox_dir_remove(s, name, e);
            audit_done(s, "remove", name, NULL, r, e);
            gone = r == 0;
        }
    }
    name_lock_drop(s, &lock, gone);
    return r;
}

/* What the sandbox alone has of its workspace goes to the host first, unless it may be lost. */
static int sync_or_lose(const struct store *s, struct sandbox *sb, bool force, warn_fn warn,
                        struct err *e)
{
    if (!force) {
        int r = sync_workspace(s, sb, 0, warn, e);
        if (r < 0)
            err_hint(e, "`msb rm -f %s` removes it without", sb->spec.name);
        return r;
    }
    if (spec_has_snapshot(&sb->spec) && snapshot_is_out(sb->dirfd) && warn)
        warn("changes of its workspace that were not synced are lost");
    return 0;
}

static int remove_locked(const struct store *s, const char *name, bool force, warn_fn warn,
                         struct err *e)
{
    struct sandbox sb;
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0 && r != -ENOENT) { /* damaged: it can only go */
        if (!force) {
            err_hint(e, "remove it with `msb rm -f %s`", name);
            return r;
        }
        end_leftover(s, name);
        err_clear(e);
        return sandbox_dir_remove(s, name, e);
    }
    if (r < 0) {
        clear_leftover(s, name);
        return r;
    }
    if (!force)
        wait_ending(&sb);
    if (sb.state.pid && !force) {
        r = err_set(e, EBUSY, "sandbox still running: cannot remove sandbox \"%s\": status is %s",
                    name, status_name(sb.state.status));
        err_hint(e, "stop it first with `msb stop %s`, or use `msb rm -f %s`", name, name);
    } else if (sb.state.pid) {
        r = end_monitor(&sb, 0, true, e);
    }
    if (r == 0)
        r = sync_or_lose(s, &sb, force, warn, e);
    sandbox_close(&sb);
    return r < 0 ? r : sandbox_dir_remove(s, name, e);
}

int sandbox_remove(const struct store *s, const char *name, bool force, warn_fn warn, struct err *e)
{
    struct name_lock lock;
    int r = name_lock_take(s, name, &lock, e);
    if (r < 0)
        return r;
    r = remove_locked(s, name, force, warn, e);
    if (r != -ENOENT)
        audit_done(s, "remove", name, NULL, r, e);
    name_lock_drop(s, &lock, r == 0 || r == -ENOENT);
    return r;
}

/* --- requests to a running one -------------------------------------------------------------- */

static int open_running(const struct store *s, const char *name, const char *verb,
                        struct sandbox *sb, struct err *e)
{
    int r = sandbox_open(s, name, sb, e);
    if (r < 0)
        return r;
    if (sb->state.pid && sb->state.status == STATUS_RUNNING)
        return 0;
    r = err_set(e, ENOTCONN, "sandbox '%s' is not running (status: %s); cannot %s", name,
                status_name(sb->state.status), verb);
    sandbox_close(sb);
    return r;
}

/* A request failed: because the sandbox ended just then, or because it hangs. */
static int no_answer(const struct store *s, const char *name, const char *verb, int code,
                     struct err *e)
{
    struct sandbox sb;
    int r = code == ETIMEDOUT ? 0 : open_running(s, name, verb, &sb, e);
    if (r < 0)
        return r;
    if (code != ETIMEDOUT)
        sandbox_close(&sb);
    return err_sys(e, code, "sandbox '%s' does not answer", name);
}

int sandbox_ping(const struct store *s, const char *name, uint64_t *rtt_ns, struct err *e)
{
    struct sandbox sb;
    int r = open_running(s, name, "ping", &sb, e);
    if (r < 0)
        return r;
    uint64_t start_ns = now_ns();
    r = request_ping(sb.dirfd);
    *rtt_ns = now_ns() - start_ns;
    sandbox_close(&sb);
    return r < 0 ? no_answer(s, name, "ping", -r, e) : 0;
}

int sandbox_touch(const struct store *s, const char *name, struct err *e)
{
    struct sandbox sb;
    int r = open_running(s, name, "touch", &sb, e);
    if (r < 0)
        return r;
    r = request_touch(sb.dirfd);
    sandbox_close(&sb);
    return r < 0 ? no_answer(s, name, "touch", -r, e) : 0;
}

int sandbox_attach_look(const struct store *s, const char *name, const struct attach_look *look,
                        warn_fn warn, int *ret_fd, bool *started, struct err *e)
{
    *started = false;
    for (int i = 0; i < CONNECT_TRIES; i++) {
        struct sandbox sb;
        int r = sandbox_open(s, name, &sb, e);
        if (r == 0 && i == 0 && look) {
            r = look->fn(look->ctx, &sb.spec, e);
            if (r < 0)
                sandbox_close(&sb);
        }
        if (r < 0)
            return r;
        bool running = sb.state.pid && sb.state.status == STATUS_RUNNING;
        int fd = running ? sandbox_connect(sb.dirfd) : -EAGAIN;
        bool alive = sb.state.pid != 0;
        sandbox_close(&sb);
        if (fd >= 0) {
            *ret_fd = fd;
            return 0;
        }
        if (*started && !alive)
            return err_set(e, ECHILD, "sandbox '%s' ended as soon as it had started", name);
        if (!running) { /* waits for a stop or start under way */
            r = start(s, name, true, warn, e);
            if (r < 0 && r != -EBUSY)
                return r;
            err_clear(e); /* that somebody else has started it is good news */
            *started = *started || r == 0;
        }
        struct timespec pause = {.tv_nsec = 5000000};
        if (r < 0 || running)
            (void)nanosleep(&pause, NULL);
    }
    return err_set(e, ETIMEDOUT, "cannot connect to sandbox '%s'", name);
}

int sandbox_attach(const struct store *s, const char *name, warn_fn warn, int *ret_fd,
                   bool *started, struct err *e)
{
    return sandbox_attach_look(s, name, NULL, warn, ret_fd, started, e);
}

int sandbox_release(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    for (;;) {
        struct sandbox sb;
        int r = sandbox_open(s, name, &sb, e);
        if (r < 0)
            return r == -ENOENT ? 0 : r;
        AUTO_CLOSE int pidfd = monitor_pidfd(sb.dirfd);
        unsigned sessions = 0;
        bool others = pidfd >= 0 && request_sessions(sb.dirfd, &sessions) == 0 && sessions > 0;
        bool gone = pidfd < 0 || (!others && wait_gone(pidfd, STOP_GRACE_DEFAULT_MS));
        bool copied = spec_has_snapshot(&sb.spec);
        sandbox_close(&sb);
        if (gone && copied)
            r = sandbox_sync(s, name, 0, warn, e);
        if (gone || others)
            return r;
    }
}
