#include "util/process.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int process_close_others(unsigned from, const int *keep, size_t n)
{
    for (;;) {
        unsigned next = UINT_MAX; /* the smallest one to keep at or above `from` */
        for (size_t i = 0; i < n; i++)
            if (keep[i] >= 0 && (unsigned)keep[i] >= from && (unsigned)keep[i] < next)
                next = (unsigned)keep[i];
        if (next > from && close_range(from, next == UINT_MAX ? UINT_MAX : next - 1, 0) < 0)
            return -errno;
        if (next == UINT_MAX)
            return 0;
        from = next + 1;
    }
}

void process_default_signals(void)
{
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

int process_close_stdio(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return -errno;
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(null_fd, fd);
    if (null_fd >= 3)
        (void)close(null_fd);
    return 0;
}

int process_wait(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return status;
}

int process_exit_code(int status)
{
    if (status < 0)
        return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static struct {
    int n;
    char **v;
    char *rest;  /* those after the program's name, one after another ... */
    size_t room; /* ... without the final zero */
} shown;         /* the arguments as the kernel shows them */

char **process_own_arguments(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    for (int i = 0; copy && i < argc; i++) {
        copy[i] = strdup(argv[i]);
        if (!copy[i])
            return argv; /* what was copied is small, and this process fails soon */
    }
    if (!copy)
        return argv;
    shown.n = argc;
    shown.v = argv;
    char *end = argc > 1 ? argv[argc - 1] + strlen(argv[argc - 1]) : NULL;
    if (argc > 1 && end >= argv[1]) {
        shown.rest = argv[1];
        shown.room = (size_t)(end - argv[1]);
    }
    return copy;
}

void process_hide_argument(int i, size_t from)
{
    if (i >= shown.n)
        return;
    size_t n = strlen(shown.v[i]);
    if (from < n)
        memset(shown.v[i] + from, '*', n - from);
}

/* The last byte stays zero, or the kernel would show the environment as well. */
static void forget_arguments(const char *title, const char *name)
{
    size_t n = strlen(title);
    if (!shown.rest)
        return;
    explicit_bzero(shown.rest, shown.room);
    shown.n = 1;
    if (n <= shown.room)
        (void)snprintf(shown.rest, shown.room + 1, "%s", title);
    if (name && n + 1 + strlen(name) <= shown.room)
        (void)snprintf(shown.rest + n + 1, shown.room - n, "%s", name);
}

static void forget_environment(void)
{
    static const char *const keep[] = {"MSB_HOME=", "MSB_AUDIT="};
    char **to = environ;
    for (char **from = environ; from && *from; from++) {
        bool kept = false;
        for (size_t i = 0; i < sizeof(keep) / sizeof(keep[0]); i++)
            kept = kept || strncmp(*from, keep[i], strlen(keep[i])) == 0;
        if (kept)
            *to++ = *from;
        else
            explicit_bzero(*from, strlen(*from));
    }
    if (to)
        *to = NULL;
}

void process_forget_caller(const char *title, const char *name)
{
    forget_arguments(title, name);
    forget_environment();
}

int process_usage(pid_t pid, uint64_t *ticks, pid_t *parent)
{
    char path[64], line[1024];
    unsigned long long t[4];
    int up;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof(line) - 1, f) : 0;
    line[n] = '\0';
    const char *rest = strrchr(line, ')'); /* the name may hold anything, even parentheses */
    if (!rest || sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu",
                        &up, &t[0], &t[1], &t[2], &t[3]) != 5)
        return -ESRCH;
    *ticks = t[0] + t[1] + t[2] + t[3];
    *parent = up;
    return 0;
}
