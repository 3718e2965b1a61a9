#include "util/sock.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

int listen_at(const char *path, int backlog)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (snprintf(a.sun_path, sizeof(a.sun_path), "%s", path) >= (int)sizeof(a.sun_path))
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

/* #syscalls:fs recvmsg close */

union fd_control {
    char buf[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

int sock_send_fd(int sock, int fd)
{
    union fd_control control = {0};
    char byte = 0;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.buf,
                       .msg_controllen = sizeof(control.buf)};
    struct cmsghdr *c = &control.align;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(sock, &m, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

int sock_recv_fd(int sock)
{
    union fd_control control = {0};
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.buf,
                       .msg_controllen = sizeof(control.buf)};
    ssize_t k = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (k < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    const struct cmsghdr *c = k == 1 ? CMSG_FIRSTHDR(&m) : NULL;
    int fd;
    if (k == 0)
        return -EPIPE;
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(fd)))
        return -EPROTO;
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}
