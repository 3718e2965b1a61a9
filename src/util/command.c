#include "util/command.h"

#include "util/cleanup.h"
#include "util/loop.h"
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void __attribute__((noreturn)) run(const char *command, int out, char **env)
{
    char shell[] = "/bin/sh", flag[] = "-c", *text = strdup(command);
    char *argv[] = {shell, flag, text, NULL};
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)setpgid(0, 0);
    process_default_signals();
    if (text && null_fd >= 0 && dup2(null_fd, STDIN_FILENO) == STDIN_FILENO &&
        dup2(out, STDOUT_FILENO) == STDOUT_FILENO)
        (void)execve(shell, argv, env);
    _exit(127);
}

static int read_all(int fd, uint64_t until, char *to, size_t size, size_t *n)
{
    while (wait_readable(fd, until)) {
        if (*n == size)
            return -EFBIG;
        ssize_t got = read(fd, to + *n, size - *n);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -errno;
        *n += got > 0 ? (size_t)got : 0;
    }
    return -ETIME;
}

/* Its exit status as of waitpid(). */
static int wait_until(pid_t pid, uint64_t until)
{
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int status = 0;
    return wait_readable(pidfd, until) && waitpid(pid, &status, 0) == pid ? status : -ETIME;
}

int command_output(const char *command, char **env, unsigned seconds, char *to, size_t size,
                   size_t *n)
{
    int pair[2];
    uint64_t until = now_ns() + seconds * 1000000000ULL;
    if (pipe2(pair, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        run(command, pair[1], env ? env : environ);
    int r = pid < 0 ? -errno : 0;
    (void)close(pair[1]);
    AUTO_CLOSE int in = pair[0];
    if (r < 0)
        return r;
    (void)setpgid(pid, pid); /* whoever of us is first */
    *n = 0;
    r = read_all(in, until, to, size, n);
    if (r == 0)
        r = wait_until(pid, until);
    (void)kill(-pid, SIGKILL);
    if (r < 0)
        (void)waitpid(pid, NULL, 0);
    return r;
}

const char *command_failure(int result, unsigned seconds, char *out, size_t size)
{
    if (result == -ETIME)
        (void)snprintf(out, size, "takes longer than %u seconds", seconds);
    else if (result < 0)
        (void)snprintf(out, size, "%s", result == -EFBIG ? "prints too much" : "cannot be run");
    else if (WIFEXITED(result))
        (void)snprintf(out, size, "failed (exit code %d)", WEXITSTATUS(result));
    else
        (void)snprintf(out, size, "failed (signal %d)", WTERMSIG(result));
    return result == 0 ? NULL : out;
}
