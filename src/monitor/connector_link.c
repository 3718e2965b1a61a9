#include "monitor/connector_link.h"

#include "util/cleanup.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:monitor recvmsg sendto */

int connector_ask(int fd, uint32_t cookie, uint32_t index)
{
    struct connector_request q = {.cookie = cookie, .index = index};
    ssize_t k = send(fd, &q, sizeof(q), MSG_DONTWAIT | MSG_NOSIGNAL);
    return k == (ssize_t)sizeof(q) ? 0 : -errno;
}

int connector_answer(int fd, uint32_t *cookie, int *ret)
{
    struct connector_reply a;
    struct iovec iov = {.iov_base = &a, .iov_len = sizeof(a)};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = CMSG_LEN(sizeof(int))}; /* one, and no second one */
    ssize_t k = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    struct cmsghdr *h = k > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    AUTO_CLOSE int got = -1;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
        h->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&got, CMSG_DATA(h), sizeof(got));
    if (k != (ssize_t)sizeof(a))
        return -EPIPE;
    *cookie = a.cookie;
    if (a.code == 0 && got < 0)
        *ret = -EMFILE; /* it did not fit into our table */
    else
        *ret = a.code < 0 ? a.code : steal_fd(&got);
    return 1;
}
