#include "net/host_route.h"

#include "util/cleanup.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

/* #syscalls:net sendto recvfrom */

enum {
    ANSWER_MAX = 4096, /* of which only the first 28 bytes matter */
    STRAY_MAX = 16,    /* answers to earlier questions that are skipped */
    NEWS_AT_ONCE = 64,
};

void route_close(struct route *r)
{
    close_fd(&r->fd);
}

int route_read(const uint8_t *p, size_t n, uint32_t seq)
{
    struct nlmsghdr h;
    struct nlmsgerr error;
    struct rtmsg route;
    if (n < sizeof(h))
        return -EBADMSG;
    memcpy(&h, p, sizeof(h));
    if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > n)
        return -EBADMSG;
    if (h.nlmsg_seq != seq)
        return -EAGAIN;
    size_t rest = h.nlmsg_len - sizeof(h);
    if (h.nlmsg_type == NLMSG_ERROR && rest >= sizeof(error)) {
        memcpy(&error, p + sizeof(h), sizeof(error));
        bool known = error.error < 0 && error.error >= -4095 && error.error != -EAGAIN;
        return known ? error.error : -EBADMSG;
    }
    if (h.nlmsg_type != RTM_NEWROUTE || rest < sizeof(route))
        return -EBADMSG;
    memcpy(&route, p + sizeof(h), sizeof(route));
    return route.rtm_type;
}

static int ask(struct route *r, const struct net_addr *a)
{
    bool v4 = addr_is4(a);
    struct {
        struct nlmsghdr h;
        struct rtmsg route;
        struct rtattr attr;
        uint8_t addr[16];
    } q = {.route = {.rtm_family = v4 ? AF_INET : AF_INET6, .rtm_dst_len = v4 ? 32 : 128}};
    unsigned size = v4 ? 4 : 16;
    q.h.nlmsg_len = (uint32_t)(sizeof(q) - sizeof(q.addr) + size);
    q.h.nlmsg_type = RTM_GETROUTE;
    q.h.nlmsg_flags = NLM_F_REQUEST;
    q.h.nlmsg_seq = ++r->seq;
    q.attr.rta_type = RTA_DST;
    q.attr.rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(q.addr, v4 ? addr_bytes4(a) : a->b, size);
    ssize_t n = send(r->fd, &q, q.h.nlmsg_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? -errno : 0;
}

/* The kind of the route to an address, or -errno. */
static int look_up(struct route *r, const struct net_addr *a)
{
    uint8_t answer[ANSWER_MAX];
    int k = ask(r, a);
    if (k < 0)
        return k;
    for (unsigned i = 0; i < STRAY_MAX; i++) {
        ssize_t n = recv(r->fd, answer, sizeof(answer), MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN ? -EBADMSG : -errno; /* it would have answered by now */
        k = route_read(answer, (size_t)n, r->seq);
        if (k != -EAGAIN)
            return k;
    }
    return -EBADMSG;
}

/* Asks about loopback once: a host that answers with an error would do so forever. */
int route_open(struct route *ret)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct net_addr loopback = addr_from4((const uint8_t[4]){127, 0, 0, 1});
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0 || connect(fd, (struct sockaddr *)&kernel, sizeof(kernel)) < 0)
        return -errno;
    struct route r = {.fd = fd};
    int kind = look_up(&r, &loopback);
    if (kind != RTN_LOCAL && kind != -ENETUNREACH) /* the interface may be down */
        return kind < 0 ? kind : -EPROTO;
    r.fd = steal_fd(&fd);
    *ret = r;
    return 0;
}

bool route_is_own(struct route *r, const struct net_addr *a)
{
    int kind = look_up(r, a);
    switch (kind) {
    case RTN_UNICAST:
    case RTN_MULTICAST:
    case RTN_UNREACHABLE:
    case RTN_PROHIBIT:
    case RTN_BLACKHOLE:
    case RTN_THROW:
    case RTN_NAT:
    case -ENETUNREACH: /* there is no route, so it is not an address of this host */
    case -EHOSTUNREACH:
    case -EACCES:       /* a route of kind "prohibit" */
    case -EINVAL:       /* ... "blackhole" */
    case -EAFNOSUPPORT: /* a host without IPv6 */
    case -EOPNOTSUPP:
        return false;
    default: /* RTN_LOCAL, RTN_ANYCAST, RTN_BROADCAST, and anything unclear */
        return true;
    }
}

int route_news(void)
{
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK,
                                 .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0 || bind(fd, (struct sockaddr *)&groups, sizeof(groups)) < 0)
        return -errno;
    return steal_fd(&fd);
}

void route_drain(int fd)
{
    uint8_t any[ANSWER_MAX];
    for (unsigned i = 0; i < NEWS_AT_ONCE; i++)
        if (recv(fd, any, sizeof(any), MSG_DONTWAIT) < 0 && errno != ENOBUFS) /* some were lost */
            break;
}
