#include "sandbox/mount_wait.h"

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
#define REMEDY "unmount it with `umount -l`, or mount it again"

static uint64_t limit_ms;

void mount_wait_limit(uint64_t ms)
{
    limit_ms = ms;
}

static _Noreturn void ask(const char *path, pid_t parent)
{
    struct stat st;
    process_default_signals();
    bool gone = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent &&
                stat(path, &st) < 0 && errno == ENOTCONN;
    _exit(gone);
}

static void say(const char *path, warn_fn warn)
{
    char text[PATH_MAX + 128];
    (void)snprintf(text, sizeof(text),
                   "waiting for '%s', which does not answer: its file server may be gone", path);
    if (warn)
        warn(text);
}

int mount_wait(const char *path, warn_fn warn, struct err *e)
{
    char limit[32];
    int status = 0;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        ask(path, parent);
    AUTO_CLOSE int fd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return 0; /* the process that needs the directory will wait for it */
    uint64_t notice = now_ns() + NOTICE_MS * 1000000ULL;
    uint64_t end = limit_ms ? now_ns() + limit_ms * 1000000 : UINT64_MAX;
    bool done = wait_readable(fd, MIN(notice, end));
    if (!done && notice < end) {
        say(path, warn);
        done = wait_readable(fd, end);
    }
    if (!done)
        (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, done ? 0 : WNOHANG); /* some file systems do not release it */
    if (done && status == 0)
        return 0;
    if (done)
        return err_hinted(e, err_set(e, ENOTCONN, "the file server of '%s' is gone", path), REMEDY);
    format_duration(limit_ms, limit, sizeof(limit));
    return err_hinted(e, err_set(e, ETIME, "'%s' did not answer within %s", path, limit),
                      "its file server may be gone: " REMEDY);
}

int mounts_wait(const struct sandbox_spec *spec, warn_fn warn, struct err *e)
{
    int r = spec->workspace.path ? mount_wait(spec->workspace.path, warn, e) : 0;
    for (size_t i = 0; r == 0 && i < spec->n_mounts; i++)
        if (spec->mounts[i].source && spec->mounts[i].source[0] == '/')
            r = mount_wait(spec->mounts[i].source, warn, e);
    return r;
}
