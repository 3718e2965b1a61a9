#include "launch/mint.h"

#include "intercept/mint.h"
#include "util/process.h"
#include "util/strlist.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const char *mint_check(const char *value, size_t n)
{
    if (n == 0)
        return "is empty";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] < ' ' || value[i] == 0x7f)
            return "has a line break or control character in it, which no header can have";
    return NULL;
}

/* --- one command ----------------------------------------------------------------------------- */

static void __attribute__((noreturn)) run(const char *command, int out, char **env)
{
    char shell[] = "/bin/sh", flag[] = "-c", *text = strdup(command);
    char *argv[] = {shell, flag, text, NULL};
    (void)setpgid(0, 0);
    process_default_signals();
    if (text && dup2(out, STDOUT_FILENO) == STDOUT_FILENO)
        (void)execve(shell, argv, env);
    _exit(127);
}

/* How long until then, for poll(). */
static int left_ms(uint64_t until)
{
    uint64_t now = now_ns();
    return now >= until ? 0 : (int)((until - now) / 1000000) + 1;
}

/* False: the time is over, or there is too much. */
static bool read_all(int fd, uint64_t until, char *to, size_t size, size_t *n)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int k = poll(&p, 1, left_ms(until));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0 || *n == size)
            return false;
        ssize_t got = read(fd, to + *n, size - *n);
        if (got == 0)
            return true;
        if (got < 0 && errno != EINTR)
            return false;
        *n += got > 0 ? (size_t)got : 0;
    }
}

/* Its exit status as of waitpid(); -1: it does not end in time. */
static int wait_until(pid_t pid, uint64_t until)
{
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    int status = -1, k;
    do
        k = poll(&p, 1, left_ms(until));
    while (k < 0 && errno == EINTR);
    (void)close(p.fd);
    return k > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static void say(struct mint_answer *a, const char *what)
{
    a->code = EIO;
    (void)snprintf(a->why, sizeof(a->why), "the command of secret %s %s", a->name, what);
}

static void judge(struct mint_answer *a, bool whole, int status)
{
    char text[64];
    if (!whole || status == -1) {
        (void)snprintf(text, sizeof(text), "takes longer than %d seconds", MINT_TIME_S);
        say(a, a->n == sizeof(a->value) ? "prints too much" : text);
        return;
    }
    if (status != 0) {
        (void)snprintf(text, sizeof(text), "failed (%s %d)",
                       WIFEXITED(status) ? "exit code" : "signal",
                       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        say(a, text);
        return;
    }
    if (a->n > 0 && a->value[a->n - 1] == '\n')
        a->n--;
    const char *wrong = mint_check(a->value, a->n);
    (void)snprintf(text, sizeof(text), "printed a value that %.40s", wrong ? wrong : "");
    if (wrong)
        say(a, text);
}

static void mint_one(const struct mint_source *s, char **env, struct mint_answer *a)
{
    int pair[2];
    uint64_t until = now_ns() + MINT_TIME_S * 1000000000ULL;
    size_t n = 0;
    a->ttl_s = s->ttl_s;
    if (pipe2(pair, O_CLOEXEC) < 0) {
        say(a, "cannot be run");
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        run(s->command, pair[1], env);
    (void)close(pair[1]);
    if (pid > 0) {
        (void)setpgid(pid, pid); /* whoever of us is first */
        bool whole = read_all(pair[0], until, a->value, sizeof(a->value), &n);
        int status = whole ? wait_until(pid, until) : -1;
        a->n = (uint32_t)n;
        (void)kill(-pid, SIGKILL);
        if (status == -1)
            (void)waitpid(pid, NULL, 0);
        judge(a, whole, status);
    } else {
        say(a, "cannot be run");
    }
    (void)close(pair[0]);
}

/* --- the process ----------------------------------------------------------------------------- */

/* The environment is still needed, but not to be shown in /proc. */
static char **keep_environment(void)
{
    static struct strlist copy;
    for (char **v = environ; v && *v; v++)
        (void)strlist_add(&copy, *v);
    return copy.v;
}

static void detach(int sock)
{
    (void)setsid();
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    process_forget_caller("mint", NULL);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null_fd >= 0 && fd < 3; fd++)
        (void)dup2(null_fd, fd);
    (void)process_close_others(3, &sock, 1);
    (void)!chdir("/");
}

void mint_serve(int sock, const struct mint_source *source, size_t n)
{
    static struct mint_answer a;
    struct mint_ask ask;
    char **env = keep_environment(), *none[] = {NULL};
    detach(sock);
    for (;;) {
        ssize_t k = recv(sock, &ask, sizeof(ask), 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k != (ssize_t)sizeof(ask))
            _exit(0);
        ask.name[sizeof(ask.name) - 1] = '\0';
        size_t i = 0;
        while (i < n && strcmp(source[i].name, ask.name) != 0)
            i++;
        memcpy(a.name, ask.name, sizeof(a.name));
        if (i < n)
            mint_one(&source[i], env ? env : none, &a);
        else
            say(&a, "is not known");
        if (a.code)
            explicit_bzero(a.value, sizeof(a.value));
        if (send(sock, &a, sizeof(a), MSG_NOSIGNAL) != (ssize_t)sizeof(a))
            _exit(0);
        explicit_bzero(&a, sizeof(a));
    }
}
