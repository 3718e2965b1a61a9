#include "monitor/connector_link.h"

#include "util/cleanup.h"
#include "util/sock.h"

#include <errno.h>
#include <sys/socket.h>

/* #syscalls:monitor sendto */

int connector_ask(int fd, uint32_t cookie, uint32_t index)
{
    struct connector_request q = {.cookie = cookie, .index = index};
    ssize_t k = send(fd, &q, sizeof(q), MSG_DONTWAIT | MSG_NOSIGNAL);
    return k == (ssize_t)sizeof(q) ? 0 : -errno;
}

int connector_answer(int fd, uint32_t *cookie, int *ret)
{
    struct connector_reply a;
    AUTO_CLOSE int got = -1;
    ssize_t k = sock_recv_with_fd(fd, &a, sizeof(a), &got);
    if (k == -EAGAIN)
        return 0;
    if (k != (ssize_t)sizeof(a))
        return -EPIPE;
    *cookie = a.cookie;
    if (a.code == 0 && got < 0)
        *ret = -EMFILE; /* there was no room for it in our table */
    else
        *ret = a.code < 0 ? a.code : steal_fd(&got);
    return 1;
}
