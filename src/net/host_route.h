/* Which addresses are this host's own, asked of the kernel's routing table.
 *
 * The socket is opened before the jail closes: the filter of the network's thread has no AF_NETLINK.
 * It is connected to the kernel, so nobody else can put a message into it. Its opener has no
 * capability over the caller's network, so it can ask and change nothing.
 *
 * Each call asks again: addresses come and go while a sandbox runs. The kernel answers within the
 * call, so nothing waits. A second socket says when addresses have changed, for flows that exist.
 */
#pragma once

#include "util/addr.h"

#include <stddef.h>

struct route {
    int fd;
    uint32_t seq; /* of the last question */
};
#define ROUTE_NONE \
    {              \
        .fd = -1   \
    }

int route_open(struct route *r);
void route_close(struct route *r);

/* Whether packets to it end on this host (an address of its own, anycast), or at everyone on a link
 * (broadcast). Yes, when that cannot be told. */
bool route_is_own(struct route *r, const struct net_addr *a);

/* A descriptor that becomes readable when an address of the host comes or goes; or -errno. What it
 * says is of no interest: route_drain() discards it. */
int route_news(void);
void route_drain(int fd);

/* One message of the kernel: the kind of the route (RTN_*), the kernel's -errno, -EAGAIN for an
 * answer to another question, -EBADMSG if it is no answer at all. */
int route_read(const uint8_t *p, size_t n, uint32_t seq);
