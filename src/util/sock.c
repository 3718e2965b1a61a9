#include "util/sock.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int address_of(struct sockaddr_un *a, const char *path)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path, sizeof(a->sun_path), "%s", path);
    return n < (int)sizeof(a->sun_path) ? 0 : -ENAMETOOLONG;
}

int connect_at(const char *path)
{
    struct sockaddr_un a;
    int r = address_of(&a, path);
    AUTO_CLOSE int fd = r < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (r == 0 && (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0))
        if (fd < 0 || errno != EINTR)
            return -errno;
    return r < 0 ? r : steal_fd(&fd);
}

int listen_at(const char *path, int backlog)
{
    struct sockaddr_un a;
    if (address_of(&a, path) < 0)
        return -ENAMETOOLONG;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    mode_t old = umask(0077);
    int r = bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
    (void)umask(old);
    if (r == 0 && listen(fd, backlog) < 0)
        r = -errno;
    return r < 0 ? r : steal_fd(&fd);
}

int packet_pair(int *ret_here, int *ret_there, struct err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(e, errno, "cannot create a socket pair");
    *ret_here = pair[0];
    *ret_there = pair[1];
    return 0;
}

ssize_t packet_receive(int sock, void *to, size_t n)
{
    ssize_t k;
    do
        k = recv(sock, to, n, 0);
    while (k < 0 && errno == EINTR);
    return k;
}

/* #syscalls:fs,monitor recvmsg close */
/* #syscalls:connector sendmsg */

union fd_control {
    char buf[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

ssize_t sock_send_with_fd(int sock, const void *p, size_t n, int fd)
{
    union fd_control control = {0};
    struct iovec iov = {.iov_base = (void *)p, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = fd < 0 ? NULL : control.buf,
                       .msg_controllen = fd < 0 ? 0 : sizeof(control.buf)};
    struct cmsghdr *c = &control.align;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    ssize_t k = sendmsg(sock, &m, MSG_NOSIGNAL);
    return k < 0 ? -errno : k;
}

/* There is room for one descriptor: the kernel drops those that do not fit. (CMSG_SPACE would leave
 * room for a second one in the first one's padding.) */
ssize_t sock_recv_with_fd(int sock, void *p, size_t n, int *ret_fd)
{
    union fd_control control = {0};
    struct iovec iov = {.iov_base = p, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.buf,
                       .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t k = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (k < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *ret_fd = -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    return k;
}

int sock_send_fd(int sock, int fd)
{
    ssize_t k = sock_send_with_fd(sock, "", 1, fd);
    return k == 1 ? 0 : (int)k;
}

int sock_recv_fd(int sock)
{
    char byte;
    int fd = -1;
    ssize_t k = sock_recv_with_fd(sock, &byte, 1, &fd);
    if (k < 0)
        return (int)k;
    if (k == 0)
        return -EPIPE;
    return fd >= 0 ? fd : -EPROTO;
}
