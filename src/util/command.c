#include "util/command.h"

#include "util/cleanup.h"
#include "util/loop.h"
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not by fork(): the caller may have threads. */
static int start(const struct command *c, int fd, pid_t *pid)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    sigset_t none, all;
    if (posix_spawn_file_actions_init(&fa))
        return -ENOMEM;
    if (posix_spawnattr_init(&attr)) {
        (void)posix_spawn_file_actions_destroy(&fa);
        return -ENOMEM;
    }
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              (c->apart ? POSIX_SPAWN_SETPGROUP : 0));
    int code = c->input
                   ? posix_spawn_file_actions_adddup2(&fa, fd, STDIN_FILENO)
                   : posix_spawn_file_actions_addopen(&fa, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (code == 0)
        code = posix_spawn_file_actions_adddup2(&fa, fd, STDOUT_FILENO);
    if (code == 0 && c->quiet)
        code = posix_spawn_file_actions_addopen(&fa, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (code == 0)
        code = posix_spawnp(pid, c->argv[0], &fa, &attr, c->argv, c->env ? c->env : environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&fa);
    return -code;
}

static int read_all(int fd, uint64_t until, char *to, size_t size, size_t *n)
{
    while (wait_readable(fd, until)) {
        if (*n == size)
            return -EFBIG;
        ssize_t got = read(fd, to + *n, size - *n);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) /* it has not read all of its input */
            return 0;
        if (got < 0 && errno != EINTR)
            return -errno;
        *n += got > 0 ? (size_t)got : 0;
    }
    return -ETIME;
}

/* Its exit status as from waitpid(). */
static int wait_until(pid_t pid, uint64_t until)
{
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int status = 0;
    return wait_readable(pidfd, until) && waitpid(pid, &status, 0) == pid ? status : -ETIME;
}

int command_run(const struct command *c, char *to, size_t size, size_t *n)
{
    int pair[2];
    pid_t pid = 0;
    uint64_t until = now_ns() + c->seconds * 1000000000ULL;
    /* Writing to a socket causes no SIGPIPE; but not every program expects a socket. */
    if ((c->input ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)
                  : pipe2(pair, O_CLOEXEC)) < 0)
        return -errno;
    AUTO_CLOSE int ours = pair[0];
    int r = start(c, pair[1], &pid);
    (void)close(pair[1]);
    if (r < 0)
        return r;
    if (c->input) {
        (void)send(ours, c->input, strlen(c->input), MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)shutdown(ours, SHUT_WR);
    }
    *n = 0;
    r = read_all(ours, until, to, size, n);
    if (r == 0)
        r = wait_until(pid, until);
    if (c->apart || r < 0)
        (void)kill(c->apart ? -pid : pid, SIGKILL);
    if (r < 0)
        (void)process_wait(pid);
    return r;
}

int command_output(const char *line, char **env, unsigned seconds, char *to, size_t size, size_t *n)
{
    char *argv[] = {(char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t)line, NULL};
    const struct command c = {.argv = argv, .env = env, .apart = true, .seconds = seconds};
    return command_run(&c, to, size, n);
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
