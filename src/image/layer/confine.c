#include "image/layer/confine.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jail/jail.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

#define DATA_MAX (2ULL << 30)

/* ---- the child ---- */

static void reset_signals(void)
{
    /* The parent handles the terminal's signals; its death also ends this process. */
    static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGINT, SIGQUIT, SIGHUP, SIGTERM};
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction sa;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_IGN && sa.sa_handler != SIG_DFL)
            (void)signal(sig, SIG_DFL);
    }
    for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
        (void)signal(ignored[i], SIG_IGN);
}

int confine_process(const char *name, pid_t parent, const int *keep, size_t n, uint64_t max_file)
{
    (void)prctl(PR_SET_NAME, name);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(1);
    reset_signals();
    /* In a process forked by a thread, returning memory would make glibc read a file in /proc. */
    (void)mallopt(M_TRIM_THRESHOLD, -1);
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_FSIZE, max_file},
#if !defined(__SANITIZE_ADDRESS__)
        {RLIMIT_DATA, DATA_MAX},
#endif
    };
    int r = process_close_others(0, keep, n);
    return r < 0 ? r : jail_set_limits(limits, ARRAY_LEN(limits), NULL);
}

/* ---- the parent ---- */

/* Explains the end of a child that left no record. */
static int child_died(int status, struct err *e)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        return err_set(e, EPERM, "the converter made a system call that is not allowed");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return err_set(e, ENOMEM, "the converter was killed, perhaps because memory ran out");
    if (WIFSIGNALED(status))
        return err_set(e, EIO, "the converter crashed (signal %d)", WTERMSIG(status));
    return err_set(e, EIO, "the converter ended without a result");
}

int confine_collect(pid_t *pid, int fd, void *record, size_t n, struct err *e)
{
    ssize_t len = read_up_to(fd, record, n);
    int status = process_wait(*pid);
    *pid = -1;
    return len != (ssize_t)n || status > 0 ? child_died(MAX(status, 0), e) : 0;
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
