#include "store/audit_sinks.h"

#include "util/buf.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

enum {
    WAIT_MS = 500,             /* for a sink that is busy */
    DATAGRAM_MAX = 128 * 1024, /* longer ones are truncated: the file has all of it */
};

#define SYSLOG_PATH "/dev/log"
#define JOURNAL_PATH "/run/systemd/journal/socket"

enum { SINK_SYSLOG, SINK_JOURNAL, SINK_COMMAND, SINKS };

static struct {
    pid_t pid; /* a fork opens them again: the descriptors may be closed there */
    int fd[SINKS];
    bool open[SINKS], dead[SINKS];
} sinks;

bool audit_has_sinks(const struct audit_settings *a)
{
    return a->syslog || a->journald || (a->command && a->command[0]);
}

/* --- datagrams ------------------------------------------------------------------------------- */

static int open_datagram(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval wait = {.tv_usec = WAIT_MS * 1000L};
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) < 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        return -errno;
    return steal_fd(&fd);
}

static int send_datagram(int fd, const struct buf *b)
{
    ssize_t k;
    do
        k = send(fd, buf_head(b), buf_len(b), MSG_NOSIGNAL);
    while (k < 0 && errno == EINTR);
    return k < 0 ? -errno : 0;
}

static int put_cut(struct buf *b, const char *line)
{
    return buf_append(b, line, MIN(strlen(line), (size_t)DATAGRAM_MAX));
}

static int send_syslog(int fd, const char *line)
{
    AUTO_BUF struct buf b = {.limit = DATAGRAM_MAX + 64};
    int r = buf_printf(&b, "<%d>msb[%d]: ", LOG_AUTHPRIV | LOG_NOTICE, (int)getpid());
    if (r == 0)
        r = put_cut(&b, line);
    return r < 0 ? r : send_datagram(fd, &b);
}

/* A value with a newline would become a separate field: such names are only in the record. */
static int put_field(struct buf *b, const char *name, const char *value)
{
    return value && !strchr(value, '\n') ? buf_printf(b, "%s=%.1024s\n", name, value) : 0;
}

static int send_journal(int fd, const json_t *j, const char *line)
{
    AUTO_BUF struct buf b;
    const char *event = json_string_value(json_object_get(j, "event"));
    const char *sandbox = json_string_value(json_object_get(j, "sandbox"));
    buf_init(&b, (size_t)2 * DATAGRAM_MAX);
    int r = buf_printf(&b, "MESSAGE=%s%s%.256s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=msb\n",
                       event ? event : "", sandbox && !strchr(sandbox, '\n') ? " " : "",
                       sandbox && !strchr(sandbox, '\n') ? sandbox : "", LOG_NOTICE);
    if (r == 0)
        r = put_field(&b, "MSB_EVENT", event);
    if (r == 0)
        r = put_field(&b, "MSB_SANDBOX", sandbox);
    if (r == 0)
        r = buf_append(&b, "MSB_RECORD=", 11);
    if (r == 0)
        r = put_cut(&b, line);
    if (r == 0)
        r = buf_append(&b, "\n", 1);
    return r < 0 ? r : send_datagram(fd, &b);
}

/* --- a program ------------------------------------------------------------------------------- */

/* It keeps none of the caller's terminals or pipes open. */
static int start_command(char *const *argv)
{
    static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    char *const env[] = {path, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int pipe_fds[2];
    pid_t pid;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    AUTO_CLOSE int theirs = pipe_fds[0], ours = pipe_fds[1];
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawn_file_actions_adddup2(&files, theirs, STDIN_FILENO);
    (void)posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    int code = posix_spawn(&pid, argv[0], &files, &attr, argv, env);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    if (code == 0 && fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        code = errno;
    return code ? -code : steal_fd(&ours);
}

/* Sends all of it, within the program's time limit. */
static int feed(int fd, const char *p, size_t n)
{
    uint64_t until = now_ns() + WAIT_MS * 1000000ULL;
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
            continue;
        }
        if (now_ns() >= until)
            return -ETIMEDOUT;
        struct pollfd f = {.fd = fd, .events = POLLOUT};
        (void)poll(&f, 1, WAIT_MS);
    }
    return 0;
}

/* A program that has ended must not end us: SIGPIPE is blocked, and consumed, while we write. */
static int send_command(int fd, const char *line)
{
    sigset_t broken, old, pending;
    (void)sigemptyset(&broken);
    (void)sigaddset(&broken, SIGPIPE);
    bool was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    if (pthread_sigmask(SIG_BLOCK, &broken, &old) != 0)
        return -EINVAL;
    int r = feed(fd, line, strlen(line));
    if (r == 0)
        r = feed(fd, "\n", 1);
    if (r == -EPIPE && !was_pending)
        (void)sigtimedwait(&broken, NULL, &(struct timespec){0});
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

/* --- all of them ----------------------------------------------------------------------------- */

static int open_sink(int sink, const struct audit_settings *a)
{
    if (sink == SINK_COMMAND)
        return start_command(a->command);
    return open_datagram(sink == SINK_SYSLOG ? SYSLOG_PATH : JOURNAL_PATH);
}

static int send_to(int sink, const json_t *j, const char *line)
{
    int fd = sinks.fd[sink];
    if (sink == SINK_SYSLOG)
        return send_syslog(fd, line);
    return sink == SINK_JOURNAL ? send_journal(fd, j, line) : send_command(fd, line);
}

void audit_send(const struct audit_settings *a, const json_t *j, const char *line,
                void (*warn)(const char *text))
{
    const bool wanted[] = {a->syslog, a->journald, a->command && a->command[0]};
    const char *const names[] = {"syslog (" SYSLOG_PATH ")", "the journal (" JOURNAL_PATH ")",
                                 wanted[SINK_COMMAND] ? a->command[0] : ""};
    if (sinks.pid != getpid())
        memset(&sinks, 0, sizeof(sinks));
    sinks.pid = getpid();
    for (int i = 0; i < SINKS; i++) {
        if (!wanted[i] || sinks.dead[i])
            continue;
        int r = 0;
        if (!sinks.open[i]) {
            sinks.fd[i] = r = open_sink(i, a);
            sinks.open[i] = r >= 0;
        }
        if (r >= 0)
            r = send_to(i, j, line);
        if (r >= 0)
            continue;
        char text[512];
        (void)snprintf(text, sizeof(text),
                       "cannot send audit records to %.300s: %s; they are in the audit log",
                       names[i], strerror(-r));
        warn(text);
        sinks.dead[i] = true;
        if (sinks.open[i])
            (void)close(sinks.fd[i]);
        sinks.open[i] = false;
    }
}
