#include "cli/options/mount_wait.h"

#include "cli/core/ui.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/process.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { NOTICE_MS = 1000 };

static uint64_t limit_ms;

void mount_wait_limit(uint64_t ms)
{
    limit_ms = ms;
}

static _Noreturn void ask(const char *path, pid_t parent)
{
    struct stat st;
    process_default_signals();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent)
        (void)stat(path, &st);
    _exit(0);
}

static void say(const char *path)
{
    char text[PATH_MAX + 128];
    (void)snprintf(text, sizeof(text),
                   "waiting for '%s', which does not answer: its file server may be gone", path);
    ui_warn(text);
}

int mount_wait(const char *path, struct err *e)
{
    char limit[32];
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        ask(path, parent);
    AUTO_CLOSE int fd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return 0; /* whoever needs the directory waits for it */
    uint64_t notice = now_ns() + NOTICE_MS * 1000000ULL;
    uint64_t end = limit_ms ? now_ns() + limit_ms * 1000000 : UINT64_MAX;
    bool done = wait_readable(fd, MIN(notice, end));
    if (!done && notice < end) {
        say(path);
        done = wait_readable(fd, end);
    }
    if (!done)
        (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, done ? 0 : WNOHANG); /* some file systems do not let go of it */
    if (done)
        return 0;
    format_duration(limit_ms, limit, sizeof(limit));
    (void)err_set(e, ETIMEDOUT, "'%s' did not answer within %s", path, limit);
    err_hint(e, "its file server may be gone: unmount it with `umount -l`, or mount it again");
    return -ETIMEDOUT;
}
