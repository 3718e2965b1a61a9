#include "intercept/link.h"

#include "util/cleanup.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:net sendmsg recvmsg close */

union control {
    struct cmsghdr align;
    char space[CMSG_SPACE(2 * sizeof(int))];
};

int link_send(int sock, const void *p, size_t n, int fd1, int fd2)
{
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    int fds[2], count = 0;
    if (fd1 >= 0)
        fds[count++] = fd1;
    if (fd2 >= 0)
        fds[count++] = fd2;
    if (count > 0) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof(int));
    }
    ssize_t k = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k < 0)
        return -errno;
    return (size_t)k == n ? 0 : -EPROTO;
}

static void take_fds(struct msghdr *m, int fds[2])
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = MIN((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), (size_t)2);
        memcpy(fds, CMSG_DATA(c), n * sizeof(int));
    }
}

int link_recv(int sock, void *p, size_t n, int fds[2])
{
    union control control = {0};
    struct iovec iov = {.iov_base = p, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof(control.space)};
    fds[0] = fds[1] = -1;
    ssize_t k = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (k < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -EPIPE;
    take_fds(&m, fds);
    if (k == (ssize_t)n && !(m.msg_flags & MSG_TRUNC))
        return 1;
    close_fd(&fds[0]);
    close_fd(&fds[1]);
    return k == 0 ? -EPIPE : -EPROTO;
}
