/* Requests to a running sandbox: ping, touch, and the connection for exec. */
#include "client/request.h"
#include "sandbox/bucket.h"
#include "sandbox/lifecycle.h"
#include "sandbox/monitor.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>

enum { CONNECT_TRIES = 200 }; /* 5 ms apart: a monitor may be just starting or ending */

static int open_running(const struct store *s, const char *name, const char *verb,
                        struct sandbox *sb, struct err *e)
{
    int r = sandbox_open(s, name, sb, e);
    if (r < 0)
        return r;
    if (sb->state.pid && sb->state.status == STATUS_RUNNING)
        return 0;
    return err_set(e, ENOTCONN, "sandbox '%s' is not running (status: %s); cannot %s", name,
                   status_name(sb->state.status), verb);
}

/* A request failed: either the sandbox has just ended, or it hangs. */
static int no_answer(const struct store *s, const char *name, const char *verb, int code,
                     struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = code == ETIMEDOUT ? 0 : open_running(s, name, verb, &sb, e);
    return r < 0 ? r : err_sys(e, code, "sandbox '%s' does not answer", name);
}

int sandbox_ping(const struct store *s, const char *name, uint64_t *rtt_ns, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = open_running(s, name, "ping", &sb, e);
    if (r < 0)
        return r;
    uint64_t start_ns = now_ns();
    r = request_ping(sb.dirfd);
    *rtt_ns = now_ns() - start_ns;
    return r < 0 ? no_answer(s, name, "ping", -r, e) : 0;
}

int sandbox_touch(const struct store *s, const char *name, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = open_running(s, name, "touch", &sb, e);
    if (r < 0)
        return r;
    r = request_touch(sb.dirfd);
    return r < 0 ? no_answer(s, name, "touch", -r, e) : 0;
}

int sandbox_attach_look(const struct store *s, const char *name, const struct attach_look *look,
                        warn_fn warn, int *ret_fd, bool *started, struct err *e)
{
    *started = false;
    for (int i = 0; i < CONNECT_TRIES; i++) {
        AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
        int r = sandbox_open(s, name, &sb, e);
        if (r == 0 && i == 0 && look)
            r = look->fn(look->ctx, &sb.spec, e);
        if (r < 0)
            return r;
        bool running = sb.state.pid && sb.state.status == STATUS_RUNNING;
        int fd = running ? sandbox_connect(sb.dirfd) : -EAGAIN;
        if (fd >= 0) {
            *ret_fd = fd;
            return 0;
        }
        if (*started && !sb.state.pid)
            return err_set(e, ECHILD, "sandbox '%s' ended as soon as it had started", name);
        if (!running) { /* waits for a stop or start under way */
            sandbox_close(&sb);
            r = sandbox_start_on_demand(s, name, warn, e);
            if (r < 0)
                return r;
            *started = *started || r == 0; /* another process having started it is just as good */
        }
        if (r == 1 || running)
            sleep_ms(5);
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
        AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
        int r = sandbox_open(s, name, &sb, e);
        if (r < 0)
            return r == -ENOENT ? 0 : r;
        AUTO_CLOSE int pidfd = monitor_pidfd(sb.dirfd);
        unsigned sessions = 0;
        bool others = pidfd >= 0 && request_sessions(sb.dirfd, &sessions) == 0 && sessions > 0;
        bool gone = pidfd < 0 || (!others && monitor_wait(pidfd, STOP_GRACE_DEFAULT_MS));
        if (gone && spec_has_snapshot(&sb.spec))
            r = sandbox_sync(s, name, 0, warn, e);
        if (gone && r == 0)
            bucket_leave(s, sb.spec.workspace.name, warn);
        if (gone || others)
            return r;
    }
}
