#include "sandbox/monitor.h"

#include "client/request.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    KILL_WAIT_MS = 5000,  /* how long a killed monitor may take to be gone */
    STOP_SLACK_MS = 5000, /* beyond the grace period, before we kill it */
};

/* The lock is checked again once we hold the pidfd, so that it cannot be an unrelated process with
 * a recycled pid. */
int monitor_pidfd(int dirfd)
{
    pid_t pid = monitor_lock_holder(dirfd);
    if (pid <= 0)
        return pid < 0 ? pid : -ESRCH;
    AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return -errno;
    return monitor_lock_holder(dirfd) == pid ? steal_fd(&fd) : -ESRCH;
}

bool monitor_wait(int pidfd, uint64_t timeout_ms)
{
    return wait_readable(pidfd, now_ns() + timeout_ms * 1000000ULL);
}

static int send_kill(int pidfd)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

static int kill_monitor(struct sandbox *sb, int pidfd, struct err *e)
{
    if (send_kill(pidfd) < 0 && errno != ESRCH)
        return err_sys(e, errno, "cannot kill the monitor of sandbox '%s'", sb->spec.name);
    if (!monitor_wait(pidfd, KILL_WAIT_MS))
        return err_hinted(
            e, err_set(e, ETIMEDOUT, "the monitor of sandbox '%s' does not end", sb->spec.name),
            "check process %d: it may hang in a file system", (int)sb->state.pid);
    /* Killed on purpose: not a crash. */
    struct sandbox_state st = sb->state;
    st.status = STATUS_STOPPED;
    st.updated_ns = realtime_ns();
    (void)snprintf(st.reason, sizeof(st.reason), "killed on request");
    AUTO_CLOSE int run = dir_open_at(sb->dirfd, "run");
    if (run >= 0)
        (void)state_save(run, &st);
    return 0;
}

int monitor_terminate(struct sandbox *sb, uint64_t grace_ms, struct err *e)
{
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    if (pidfd == -ESRCH)
        return 0;
    if (pidfd < 0)
        return err_sys(e, -pidfd, "cannot watch the monitor of sandbox '%s'", sb->spec.name);
    if (grace_ms == 0)
        return kill_monitor(sb, pidfd, e);
    /* A monitor that cannot be reached is ending, or hangs: either way, it ends below. */
    (void)request_stop(sb->dirfd, grace_ms);
    return monitor_wait(pidfd, grace_ms + STOP_SLACK_MS) ? 0 : kill_monitor(sb, pidfd, e);
}

void monitor_kill_leftover(const struct store *s, const char *name)
{
    AUTO_CLOSE int dirfd = dir_open_at(s->sandboxes_fd, name);
    AUTO_CLOSE int pidfd = dirfd < 0 ? -1 : monitor_pidfd(dirfd);
    if (pidfd >= 0) {
        (void)send_kill(pidfd);
        (void)monitor_wait(pidfd, KILL_WAIT_MS);
    }
}

void monitor_wait_ending(struct sandbox *sb)
{
    enum status st = sb->state.status;
    if (!sb->state.pid || (st != STATUS_DRAINING && st != STATUS_STOPPED && st != STATUS_CRASHED))
        return;
    AUTO_CLOSE int pidfd = monitor_pidfd(sb->dirfd);
    if (pidfd >= 0)
        (void)monitor_wait(pidfd, STOP_GRACE_DEFAULT_MS + STOP_SLACK_MS);
    sb->state.pid = monitor_lock_holder(sb->dirfd);
}
