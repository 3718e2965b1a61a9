/* Which addresses are this host's own, according to the kernel's routing table.
 *
 * The socket is opened before the jail closes: the filter of the network's thread has no
 * AF_NETLINK. It is connected to the kernel, so no other process can send to it. Its opener has no
 * capabilities over the caller's network, so it can query but not change anything.
 *
 * Each call asks again: addresses come and go while a sandbox runs. The kernel answers within the
 * call, so nothing waits. A second socket tells when addresses have changed, for existing flows.
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

/* Whether packets to it end on this host (its own address, anycast) or go to every host on a link
 * (broadcast). True if that cannot be determined. */
bool route_is_own(struct route *r, const struct net_addr *a);

/* A descriptor that becomes readable when an address of the host comes or goes; or -errno. Its
 * messages do not matter: route_drain() discards them. */
int route_news(void);
void route_drain(int fd);

/* Parses one message from the kernel: returns the kind of the route (RTN_*), the kernel's -errno,
 * -EAGAIN for an answer to another question, -EBADMSG if it is no answer. */
int route_read(const uint8_t *p, size_t n, uint32_t seq);
