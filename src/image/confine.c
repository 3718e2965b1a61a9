#include "image/confine.h"

#include <errno.h>
#include <limits.h>
#include <linux/close_range.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/cleanup.h"

#define DATA_MAX (2ULL << 30)

/* ---- the child ---- */

static void reset_signals(void)
{
    /* The terminal's signals are the parent's to handle; its death ends this process too. */
    static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGINT, SIGQUIT, SIGHUP, SIGTERM};
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction sa;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_IGN && sa.sa_handler != SIG_DFL)
            (void)signal(sig, SIG_DFL);
    }
    for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
        (void)signal(ignored[i], SIG_IGN);
}

static int int_cmp(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int close_others(int keep[], size_t n)
{
    unsigned from = 0;
    qsort(keep, n, sizeof(keep[0]), int_cmp);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned)keep[i] > from && close_range(from, (unsigned)keep[i] - 1, 0) < 0)
            return -errno;
        from = (unsigned)keep[i] + 1;
    }
    return close_range(from, UINT_MAX, 0) < 0 ? -errno : 0;
}

static int set_limit(int what, uint64_t max)
{
    struct rlimit old;
    if (getrlimit(what, &old) < 0)
        return -errno;
    if (old.rlim_max != RLIM_INFINITY && old.rlim_max < max)
        max = old.rlim_max;
    return setrlimit(what, &(struct rlimit){max, max}) < 0 ? -errno : 0;
}

int confine_process(const char *name, pid_t parent, int keep[], size_t n, uint64_t max_file)
{
    (void)prctl(PR_SET_NAME, name);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(1);
    reset_signals();
    /* In a fork of a thread, giving memory back would have glibc read a file of /proc. */
    (void)mallopt(M_TRIM_THRESHOLD, -1);
    int r = close_others(keep, n);
    if (r == 0)
        r = set_limit(RLIMIT_CORE, 0);
    if (r == 0)
        r = set_limit(RLIMIT_FSIZE, max_file);
#if !defined(__SANITIZE_ADDRESS__)
    if (r == 0)
        r = set_limit(RLIMIT_DATA, DATA_MAX);
#endif
    return r;
}

/* ---- the parent ---- */

/* The end of a child that left no record. */
static int child_died(int status, struct err *e)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        return err_set(e, EPERM, "the converter made a system call that is not allowed");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return err_set(e, ENOMEM, "the converter was killed, perhaps for want of memory");
    if (WIFSIGNALED(status))
        return err_set(e, EIO, "the converter crashed (signal %d)", WTERMSIG(status));
    return err_set(e, EIO, "the converter ended without a result");
}

int confine_collect(pid_t *pid, int fd, void *record, size_t n, struct err *e)
{
    size_t len = 0;
    while (len < n) {
        ssize_t k = read(fd, (char *)record + len, n - len);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        len += (size_t)k;
    }
    int status = 0;
    pid_t got;
    do {
        got = waitpid(*pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    *pid = -1;
    if (len < n || (got > 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)))
        return child_died(status, e);
    return 0;
}

int confine_error(struct err *from, struct err *e)
{
    int code = from->code > 0 && from->code < 4096 ? from->code : EIO;
    from->msg[ERR_MSG_MAX - 1] = '\0';
    int r = err_set(e, code, "%s", from->msg);
    for (int i = 0; i < MIN(from->hints, ERR_HINTS_MAX); i++) {
        from->hint[i][sizeof(from->hint[i]) - 1] = '\0';
        err_hint(e, "%s", from->hint[i]);
    }
    return r;
}
