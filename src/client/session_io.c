#include "client/session_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* A tty takes less than a pipe without waiting. */
enum { TTY_STEP = 256 };

static int reopen(int fd, bool for_writing)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, (for_writing ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static void take_waiting(struct stdio *s, bool for_writing)
{
    int own = reopen(s->fd, for_writing);
    s->kind = own >= 0 ? STDIO_OWN : STDIO_POLLED;
    if (own >= 0)
        s->fd = own;
}

void stdio_open(struct stdio *s, int fd, bool for_writing)
{
    *s = (struct stdio){.fd = fd, .kind = STDIO_CLOSED};
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH) || fstat(fd, &st) < 0)
        return;
    if ((flags & O_ACCMODE) == (for_writing ? O_RDONLY : O_WRONLY))
        return;
    s->is_tty = S_ISCHR(st.st_mode) && isatty(fd);
    s->is_null = S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
    if (S_ISSOCK(st.st_mode))
        s->kind = STDIO_SOCKET;
    else if (S_ISFIFO(st.st_mode) || s->is_tty)
        take_waiting(s, for_writing);
    else if (S_ISDIR(st.st_mode))
        return;
    else
        s->kind = STDIO_PLAIN;
}

void stdio_close(struct stdio *s)
{
    if (s->kind == STDIO_OWN)
        (void)close(s->fd);
    s->kind = STDIO_CLOSED;
    s->fd = -1;
}

static bool ready(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, 0) == 1;
}

static ssize_t result(ssize_t n)
{
    if (n >= 0)
        return n;
    return errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

ssize_t stdio_read(const struct stdio *s, void *p, size_t n)
{
    switch (s->kind) {
    case STDIO_CLOSED:
        return 0;
    case STDIO_SOCKET:
        return result(recv(s->fd, p, n, MSG_DONTWAIT));
    case STDIO_POLLED:
        if (!ready(s->fd, POLLIN))
            return -EAGAIN;
        break;
    case STDIO_PLAIN:
    case STDIO_OWN:
        break;
    }
    return result(read(s->fd, p, n));
}

static size_t total(const struct iovec *iov, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

static ssize_t write_step(const struct stdio *s, const struct iovec *iov)
{
    size_t most = s->is_tty ? TTY_STEP : PIPE_BUF;
    if (!ready(s->fd, POLLOUT))
        return -EAGAIN;
    return result(write(s->fd, iov->iov_base, iov->iov_len < most ? iov->iov_len : most));
}

ssize_t stdio_writev(const struct stdio *s, const struct iovec *iov, int n)
{
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    switch (s->kind) {
    case STDIO_CLOSED:
        return (ssize_t)total(iov, n);
    case STDIO_SOCKET:
        return result(sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL));
    case STDIO_POLLED:
        return write_step(s, iov);
    case STDIO_PLAIN:
    case STDIO_OWN:
        break;
    }
    return result(writev(s->fd, iov, n));
}
