#include "oci/netns.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/ip.h>
#include <linux/neighbour.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/tc_act/tc_mirred.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TAP_NAME "msb0"
/* The namespace's own address toward its guest: link-local, so no other host has it. */
#define HERE_ADDRESS "169.254.77.77"

enum {
    MESSAGES_MAX = 64 * 1024, /* thousands of routes have no place in a guest's start */
    REQUEST_MAX = 512,
    ANSWER_MAX = 64 * 1024,
    SEND_MAX = 1 << 20, /* bytes from a guest that the host's kernel buffers */
    KEYS_MAX = 2,
    FIRST_PRIORITY = 1,     /* of filters */
    LAST_PRIORITY = 0x6d73, /* by which our redirection is recognized later */
    OLD_PRIORITY = 2,       /* the same, until LAST_PRIORITY replaced it */
    TRIES = 50,             /* 2 ms apart: a device exists until its last holder has ended */
    PAUSE_NS = 2000000,
};

/* --- netlink --------------------------------------------------------------------------------- */

struct request {
    struct nlmsghdr h;
    uint8_t rest[REQUEST_MAX];
};

static void put(struct request *q, const void *p, size_t n)
{
    size_t at = NLMSG_ALIGN(q->h.nlmsg_len);
    assert(at + n <= sizeof(*q));
    if (n)
        memcpy((uint8_t *)q + at, p, n);
    q->h.nlmsg_len = (uint32_t)(at + n);
}

static void begin(struct request *q, uint16_t type, uint16_t flags, const void *body, size_t n)
{
    *q = (struct request){.h = {.nlmsg_len = sizeof(q->h),
                                .nlmsg_type = type,
                                .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags)}};
    put(q, body, n);
}

static void put_attr(struct request *q, uint16_t type, const void *p, size_t n)
{
    const struct rtattr a = {.rta_len = (uint16_t)RTA_LENGTH(n), .rta_type = type};
    put(q, &a, sizeof(a));
    put(q, p, n);
}

/* Begins a nested attribute, which contains everything up to nest_end(). */
static size_t nest(struct request *q, uint16_t type)
{
    size_t at = NLMSG_ALIGN(q->h.nlmsg_len);
    put_attr(q, type, NULL, 0);
    return at;
}

static void nest_end(struct request *q, size_t at)
{
    uint16_t len = (uint16_t)(q->h.nlmsg_len - at);
    memcpy((uint8_t *)q + at + offsetof(struct rtattr, rta_len), &len, sizeof(len));
}

static int answer_code(const struct nlmsghdr *h)
{
    return h->nlmsg_type == NLMSG_ERROR ? ((const struct nlmsgerr *)NLMSG_DATA(h))->error : 0;
}

static int ask(int fd, const struct request *q)
{
    _Alignas(struct nlmsghdr) char answer[1024];
    if (send(fd, q, q->h.nlmsg_len, 0) < 0)
        return -errno;
    ssize_t n = recv(fd, answer, sizeof(answer), 0);
    const struct nlmsghdr *h = (void *)answer;
    return n < 0 ? -errno : !NLMSG_OK(h, (size_t)n) ? -EBADMSG : answer_code(h);
}

/* What follows `used` bytes (rounded up) at p; *left shrinks accordingly. (The headers' own macros
 * let *left wrap around, and clang warns of their casts.) */
static const void *following(const void *p, size_t used, size_t *left)
{
    size_t step = MIN((used + 3) & ~(size_t)3, *left);
    *left -= step;
    return (const uint8_t *)p + step;
}

/* Calls fn for each of the kernel's objects of a type, as far as they match the body; a result other
 * than 0 stops it. */
static int list_some(int fd, uint16_t type, const void *body, size_t size,
                     int (*fn)(const struct nlmsghdr *h, void *ctx), void *ctx)
{
    struct request q;
    AUTO_FREE char *answer = malloc(ANSWER_MAX);
    begin(&q, type, NLM_F_DUMP, body, size);
    q.h.nlmsg_flags &= (uint16_t)~NLM_F_ACK;
    if (!answer || send(fd, &q, q.h.nlmsg_len, 0) < 0)
        return answer ? -errno : -ENOMEM;
    for (int r = 0;;) {
        ssize_t n = recv(fd, answer, ANSWER_MAX, 0);
        if (n <= 0)
            return n < 0 ? -errno : -EBADMSG;
        size_t left = (size_t)n;
        for (const struct nlmsghdr *h = (void *)answer; NLMSG_OK(h, left);
             h = following(h, h->nlmsg_len, &left)) {
            if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
                return r ? r : answer_code(h);
            if (r == 0) /* the rest is still read */
                r = fn(h, ctx);
        }
    }
}

static int list(int fd, uint16_t type, int (*fn)(const struct nlmsghdr *h, void *ctx), void *ctx)
{
    const struct rtgenmsg any = {.rtgen_family = AF_UNSPEC};
    return list_some(fd, type, &any, sizeof(any), fn, ctx);
}

static const struct rtattr *attr(const struct nlmsghdr *h, size_t body, uint16_t type)
{
    size_t left = NLMSG_PAYLOAD(h, body);
    const struct rtattr *a = (void *)((uint8_t *)NLMSG_DATA(h) + NLMSG_ALIGN(body));
    for (; RTA_OK(a, left); a = following(a, a->rta_len, &left))
        if ((a->rta_type & NLA_TYPE_MASK) == type)
            return a;
    return NULL;
}

/* --- the interface --------------------------------------------------------------------------- */

struct interface {
    int index;
    char name[IFNAMSIZ];
    uint8_t mac[6];
    uint32_t mtu;
    bool served;   /* by one of the user's processes (slirp4netns), not by a node */
    uint32_t ipv4; /* its first address, if served; 0: none */
};

/* TAP devices are also of kind "tun". */
static bool is_tun(const struct nlmsghdr *h)
{
    const struct rtattr *info = attr(h, sizeof(struct ifinfomsg), IFLA_LINKINFO);
    size_t left = info ? RTA_PAYLOAD(info) : 0;
    const struct rtattr *a = info ? RTA_DATA(info) : NULL;
    for (; RTA_OK(a, left); a = following(a, a->rta_len, &left))
        if (a->rta_type == IFLA_INFO_KIND)
            return RTA_PAYLOAD(a) >= 3 && memcmp(RTA_DATA(a), "tun", 3) == 0;
    return false;
}

static int look_at_link(const struct nlmsghdr *h, void *ctx)
{
    struct interface *to = ctx;
    const struct ifinfomsg *i = NLMSG_DATA(h);
    const struct rtattr *mac = attr(h, sizeof(*i), IFLA_ADDRESS);
    const struct rtattr *mtu = attr(h, sizeof(*i), IFLA_MTU),
                        *name = attr(h, sizeof(*i), IFLA_IFNAME);
    if (i->ifi_type != ARPHRD_ETHER || !(i->ifi_flags & IFF_UP) || !mac || !mtu || !name ||
        RTA_PAYLOAD(mac) != sizeof(to->mac) || strcmp(RTA_DATA(name), TAP_NAME) == 0)
        return 0;
    to->index = i->ifi_index;
    (void)snprintf(to->name, sizeof(to->name), "%s", (const char *)RTA_DATA(name));
    memcpy(to->mac, RTA_DATA(mac), sizeof(to->mac));
    memcpy(&to->mtu, RTA_DATA(mtu), sizeof(to->mtu));
    to->served = is_tun(h);
    return 1;
}

/* What the guest will be told, with the interface's number left open. */
struct copy {
    struct buf *to;
    int index;
};

static int keep(const struct copy *c, const struct nlmsghdr *h, size_t index_at)
{
    struct nlmsghdr *at = (void *)buf_reserve(c->to, NLMSG_ALIGN(h->nlmsg_len));
    if (!at)
        return -E2BIG;
    memset(at, 0, NLMSG_ALIGN(h->nlmsg_len));
    memcpy(at, h, h->nlmsg_len);
    at->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    at->nlmsg_seq = (uint32_t)index_at;
    at->nlmsg_pid = 0;
    buf_commit(c->to, NLMSG_ALIGN(h->nlmsg_len));
    return 0;
}

static int keep_address(const struct nlmsghdr *h, void *ctx)
{
    const struct copy *c = ctx;
    const struct ifaddrmsg *a = NLMSG_DATA(h);
    size_t at = NLMSG_HDRLEN + offsetof(struct ifaddrmsg, ifa_index);
    return (int)a->ifa_index == c->index ? keep(c, h, at) : 0;
}

/* Keeps all routes except those that the guest's kernel will also derive from addresses. */
static int keep_route(const struct nlmsghdr *h, void *ctx)
{
    const struct copy *c = ctx;
    struct rtmsg *m = NLMSG_DATA(h);
    const struct rtattr *oif = attr(h, sizeof(*m), RTA_OIF);
    int index = 0;
    if (oif)
        memcpy(&index, RTA_DATA(oif), sizeof(index));
    if (index != c->index || m->rtm_table != RT_TABLE_MAIN || m->rtm_type != RTN_UNICAST ||
        m->rtm_protocol == RTPROT_KERNEL || (m->rtm_family != AF_INET && m->rtm_family != AF_INET6))
        return 0;
    m->rtm_flags &= RTNH_F_ONLINK; /* the others are up to the kernel */
    return keep(c, h, (size_t)((const char *)RTA_DATA(oif) - (const char *)h));
}

/* Keeps only permanent neighbors. */
static int keep_neighbor(const struct nlmsghdr *h, void *ctx)
{
    const struct copy *c = ctx;
    const struct ndmsg *n = NLMSG_DATA(h);
    size_t at = NLMSG_HDRLEN + offsetof(struct ndmsg, ndm_ifindex);
    return n->ndm_ifindex == c->index && (n->ndm_state & NUD_PERMANENT) ? keep(c, h, at) : 0;
}

static int copy_settings(int fd, int index, struct buf *to)
{
    struct copy c = {to, index};
    int r = list(fd, RTM_GETADDR, keep_address, &c);
    if (r == 0)
        r = list(fd, RTM_GETNEIGH, keep_neighbor, &c);
    return r < 0 ? r : list(fd, RTM_GETROUTE, keep_route, &c);
}

/* --- the TAP device -------------------------------------------------------------------------- */

static int open_tap(struct err *e)
{
    struct ifreq r = {.ifr_name = TAP_NAME, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int most = SEND_MAX;
    AUTO_CLOSE int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_sys(e, errno, "cannot open /dev/net/tun, for the container's network");
    if (ioctl(fd, TUNSETIFF, &r) < 0) {
        if (errno != EBUSY)
            return err_sys(e, errno, "cannot create a network device for the guest");
        (void)err_set(e, EBUSY, "the container's network namespace already has another guest");
        err_hint(e, "containers that share a network need one guest: a pod can have one container");
        return -EBUSY;
    }
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0 ||
        ioctl(fd, TUNSETSNDBUF, &most) < 0)
        return err_sys(e, errno, "cannot set up the guest's network device");
    return steal_fd(&fd);
}

/* It has no address of its own, not even one that IPv6 would give it. */
static int set_up(int fd, int index, uint32_t mtu)
{
    struct request q;
    struct ifinfomsg i = {.ifi_index = index};
    uint8_t none = IN6_ADDR_GEN_MODE_NONE;
    begin(&q, RTM_NEWLINK, 0, &i, sizeof(i));
    size_t spec = nest(&q, IFLA_AF_SPEC), inet6 = nest(&q, AF_INET6);
    put_attr(&q, IFLA_INET6_ADDR_GEN_MODE, &none, sizeof(none));
    nest_end(&q, inet6);
    nest_end(&q, spec);
    (void)ask(fd, &q); /* a host without IPv6 has nothing to disable */
    i.ifi_flags = i.ifi_change = IFF_UP;
    begin(&q, RTM_NEWLINK, 0, &i, sizeof(i));
    put_attr(&q, IFLA_MTU, &mtu, sizeof(mtu));
    return ask(fd, &q);
}

static int change_ingress(int fd, int index, bool add)
{
    struct request q;
    const struct tcmsg t = {
        .tcm_ifindex = index, .tcm_handle = TC_H_MAKE(TC_H_INGRESS, 0), .tcm_parent = TC_H_INGRESS};
    begin(&q, add ? RTM_NEWQDISC : RTM_DELQDISC, add ? NLM_F_CREATE | NLM_F_EXCL : 0, &t,
          sizeof(t));
    put_attr(&q, TCA_KIND, "ingress", sizeof("ingress"));
    return ask(fd, &q);
}

static int find_other(const struct nlmsghdr *h, void *ctx)
{
    const struct tcmsg *t = NLMSG_DATA(h);
    const struct rtattr *kind = attr(h, sizeof(*t), TCA_KIND);
    bool old = t->tcm_info == TC_H_MAKE(OLD_PRIORITY << 16, htons(ETH_P_ALL)) && kind &&
               RTA_PAYLOAD(kind) == sizeof("u32") && memcmp(RTA_DATA(kind), "u32", 4) == 0;
    return !old && TC_H_MAJ(t->tcm_info) >> 16 != LAST_PRIORITY;
}

/* Removes a redirection, also one left by a container that was not deleted; but not what another
 * program does with the traffic. */
static void remove_ingress(int fd, int index)
{
    const struct tcmsg t = {.tcm_ifindex = index, .tcm_parent = TC_H_MAKE(TC_H_INGRESS, 0)};
    if (list_some(fd, RTM_GETTFILTER, &t, sizeof(t), find_other, NULL) == 0)
        (void)change_ingress(fd, index, false);
}

/* Adds a filter for a device's incoming traffic: u32 `keys`, and the device to which it is
 * redirected, or 0: this namespace's own stack gets it. */
static int filter(int fd, int from, uint32_t priority, const struct tc_u32_key *keys, uint8_t n,
                  int to)
{
    struct request q;
    const struct tc_u32_sel sel = {.flags = TC_U32_TERMINAL, .nkeys = n};
    uint8_t whole[sizeof(sel) + KEYS_MAX * sizeof(*keys)];
    const struct tc_mirred m = {
        .action = TC_ACT_STOLEN, .eaction = TCA_EGRESS_REDIR, .ifindex = (uint32_t)to};
    const struct tcmsg t = {.tcm_ifindex = from,
                            .tcm_parent = TC_H_MAKE(TC_H_INGRESS, 0),
                            .tcm_info = TC_H_MAKE(priority << 16, htons(ETH_P_ALL))};
    assert(n <= KEYS_MAX);
    memcpy(whole, &sel, sizeof(sel));
    memcpy(whole + sizeof(sel), keys, n * sizeof(*keys));
    begin(&q, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &t, sizeof(t));
    put_attr(&q, TCA_KIND, "u32", sizeof("u32"));
    size_t options = nest(&q, TCA_OPTIONS);
    put_attr(&q, TCA_U32_SEL, whole, sizeof(sel) + n * sizeof(*keys));
    if (to) {
        size_t actions = nest(&q, TCA_U32_ACT), first = nest(&q, 1);
        put_attr(&q, TCA_ACT_KIND, "mirred", sizeof("mirred"));
        size_t action = nest(&q, TCA_ACT_OPTIONS);
        put_attr(&q, TCA_MIRRED_PARMS, &m, sizeof(m));
        for (const size_t *at = (const size_t[]){action, first, actions, 0}; *at; at++)
            nest_end(&q, *at);
    }
    nest_end(&q, options);
    return ask(fd, &q);
}

/* Redirects everything that arrives at one to the other: every frame (a u32 key with an empty
 * mask), before this namespace's own stack sees it. */
static int redirect(int fd, int from, int to)
{
    const struct tc_u32_key all = {0};
    int r = change_ingress(fd, from, true);
    return r < 0 ? r : filter(fd, from, LAST_PRIORITY, &all, 1, to);
}

/* --- published ports ------------------------------------------------------------------------- */

/* Where a process serves the interface, another one (Podman's rootlessport) connects to published
 * ports from inside the namespace, at the interface's own address, which would be delivered
 * locally. So that address is routed to the TAP device, and the guest's replies are not
 * redirected. */

static void put_address(struct request *q, uint16_t type, uint32_t address)
{
    put_attr(q, type, &address, sizeof(address));
}

static int keep_ipv4(const struct nlmsghdr *h, void *ctx)
{
    struct interface *i = ctx;
    const struct ifaddrmsg *a = NLMSG_DATA(h);
    const struct rtattr *local = attr(h, sizeof(*a), IFA_LOCAL);
    if (a->ifa_family != AF_INET || (int)a->ifa_index != i->index || !local ||
        RTA_PAYLOAD(local) != sizeof(i->ipv4))
        return 0;
    memcpy(&i->ipv4, RTA_DATA(local), sizeof(i->ipv4));
    return 1;
}

/* Whether the interface's own address is this namespace's. */
static int own_address(int fd, const struct interface *i, bool own)
{
    struct request q;
    const struct rtmsg m = {.rtm_family = AF_INET,
                            .rtm_dst_len = 32,
                            .rtm_table = RT_TABLE_LOCAL,
                            .rtm_type = RTN_LOCAL,
                            .rtm_scope = RT_SCOPE_HOST,
                            .rtm_protocol = RTPROT_KERNEL};
    begin(&q, own ? RTM_NEWROUTE : RTM_DELROUTE, own ? NLM_F_CREATE : 0, &m, sizeof(m));
    put_address(&q, RTA_DST, i->ipv4);
    put_address(&q, RTA_PREFSRC, i->ipv4);
    put_attr(&q, RTA_OIF, &i->index, sizeof(i->index));
    return ask(fd, &q);
}

/* A route to one address of a device's link. *at is the offset of the device's number. */
static void link_route(struct request *q, uint32_t to, uint32_t from, int device, size_t *at)
{
    const struct rtmsg m = {.rtm_family = AF_INET,
                            .rtm_dst_len = 32,
                            .rtm_table = RT_TABLE_MAIN,
                            .rtm_type = RTN_UNICAST,
                            .rtm_scope = RT_SCOPE_LINK,
                            .rtm_protocol = RTPROT_STATIC};
    begin(q, RTM_NEWROUTE, NLM_F_CREATE, &m, sizeof(m));
    put_address(q, RTA_DST, to);
    if (from)
        put_address(q, RTA_PREFSRC, from);
    put_attr(q, RTA_OIF, &device, sizeof(device));
    *at = q->h.nlmsg_len - sizeof(device);
}

/* Tells the guest where to find this namespace. */
static int tell_guest(struct buf *messages, uint32_t here, const uint8_t mac[6])
{
    struct request q;
    size_t at = NLMSG_HDRLEN + offsetof(struct ndmsg, ndm_ifindex);
    const struct copy c = {.to = messages};
    const struct ndmsg n = {.ndm_family = AF_INET, .ndm_state = NUD_PERMANENT};
    begin(&q, RTM_NEWNEIGH, NLM_F_CREATE, &n, sizeof(n));
    put_address(&q, NDA_DST, here);
    put_attr(&q, NDA_LLADDR, mac, 6);
    int r = keep(&c, &q.h, at);
    link_route(&q, here, 0, 0, &at);
    return r < 0 ? r : keep(&c, &q.h, at);
}

/* The guest sends from an address that is also this namespace's. */
static int accept_own(int fd, int device)
{
    struct request q;
    const struct ifinfomsg i = {.ifi_index = device};
    uint32_t yes = 1;
    begin(&q, RTM_SETLINK, 0, &i, sizeof(i));
    size_t spec = nest(&q, IFLA_AF_SPEC), inet = nest(&q, AF_INET), conf = nest(&q, IFLA_INET_CONF);
    put_attr(&q, IPV4_DEVCONF_ACCEPT_LOCAL, &yes, sizeof(yes));
    for (const size_t *at = (const size_t[]){conf, inet, spec, 0}; *at; at++)
        nest_end(&q, *at);
    return ask(fd, &q);
}

static int reach_guest(int fd, const struct interface *i, int tap, const uint8_t mac[6],
                       struct buf *messages)
{
    struct request q;
    size_t at;
    const uint32_t here = inet_addr(HERE_ADDRESS);
    const struct ifaddrmsg a = {.ifa_family = AF_INET,
                                .ifa_prefixlen = 32,
                                .ifa_scope = RT_SCOPE_LINK,
                                .ifa_index = (uint32_t)tap};
    struct tc_u32_key to_us[2] = {{.off = -ETH_HLEN, .mask = UINT32_MAX},
                                  {.off = 4 - ETH_HLEN, .mask = htonl(0xffff0000)}};
    memcpy(&to_us[0].val, mac, 4);
    memcpy(&to_us[1].val, mac + 4, 2);
    begin(&q, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &a, sizeof(a));
    put_address(&q, IFA_LOCAL, here);
    int r = ask(fd, &q);
    link_route(&q, i->ipv4, here, tap, &at);
    if (r == 0)
        r = ask(fd, &q);
    if (r == 0)
        r = accept_own(fd, tap);
    if (r == 0)
        r = filter(fd, tap, FIRST_PRIORITY, to_us, ARRAY_LEN(to_us), 0);
    if (r == 0)
        r = tell_guest(messages, here, mac);
    if (r == 0)
        r = own_address(fd, i, false);
    return r == -ESRCH ? 0 : r; /* left by a container that was not deleted */
}

/* --- the whole ------------------------------------------------------------------------------- */

static int open_netlink(void)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    return fd < 0 ? -errno : fd;
}

static int join(int fd, struct interface *i, int tap_fd, struct buf *messages, struct err *e)
{
    int tap = (int)if_nametoindex(TAP_NAME);
    struct ifreq hw = {0};
    int r = set_up(fd, tap, i->mtu);
    if (r == 0)
        r = redirect(fd, tap, i->index);
    if (r == 0 && i->served && list(fd, RTM_GETADDR, keep_ipv4, i) > 0)
        r = ioctl(tap_fd, SIOCGIFHWADDR, &hw) < 0
                ? -errno
                : reach_guest(fd, i, tap, (const uint8_t *)hw.ifr_hwaddr.sa_data, messages);
    if (r == 0) {
        remove_ingress(fd, i->index);
        r = redirect(fd, i->index, tap);
    }
    if (r == 0)
        return 0;
    remove_ingress(fd, i->index);
    (void)err_sys(e, -r, "cannot connect the guest to %s of its network namespace", i->name);
    if (r == -EEXIST)
        err_hint(e, "it has rules of another program (tc filter show dev %s ingress)", i->name);
    if (r == -ENOENT || r == -EOPNOTSUPP)
        err_hint(e, "load the kernel modules sch_ingress, cls_u32 and act_mirred");
    return r;
}

int netns_connect(struct netns *ret, struct err *e)
{
    struct interface i = {0};
    ret->tap.fd = -1;
    buf_init(&ret->messages, MESSAGES_MAX);
    AUTO_CLOSE int fd = open_netlink();
    int r = fd < 0 ? fd : list(fd, RTM_GETLINK, look_at_link, &i);
    if (r == 0)
        return 0; /* there is only lo */
    if (r > 0)
        r = copy_settings(fd, i.index, &ret->messages);
    if (r < 0)
        return err_sys(e, -r, "cannot read the container's network settings");
    AUTO_CLOSE int tap = open_tap(e);
    r = tap < 0 ? tap : join(fd, &i, tap, &ret->messages, e);
    if (r < 0)
        return r;
    ret->tap = (struct net_tap){.fd = steal_fd(&tap),
                                .mtu = (uint16_t)MIN(i.mtu, UINT16_MAX),
                                .messages = buf_head(&ret->messages),
                                .messages_len = buf_len(&ret->messages)};
    memcpy(ret->tap.mac, i.mac, sizeof(i.mac));
    return 0;
}

void netns_free(struct netns *n)
{
    close_fd(&n->tap.fd);
    buf_free(&n->messages);
}

/* Unless another guest has the interface by now. */
static void give_back(void)
{
    struct interface i = {0};
    AUTO_CLOSE int fd = open_netlink();
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (int k = 0; k < TRIES && if_nametoindex(TAP_NAME); k++)
        (void)nanosleep(&pause, NULL);
    if (fd < 0 || if_nametoindex(TAP_NAME) || list(fd, RTM_GETLINK, look_at_link, &i) <= 0)
        return;
    remove_ingress(fd, i.index);
    if (i.served && list(fd, RTM_GETADDR, keep_ipv4, &i) > 0)
        (void)own_address(fd, &i, true);
}

/* Of the network namespace that the process is in; no other one has it until the host restarts. 0:
 * the kernel is older than 5.14. */
static json_int_t own_cookie(void)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint64_t ret = 0;
    socklen_t n = sizeof(ret);
    return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &ret, &n) < 0 ? 0 : (json_int_t)ret;
}

/* In a separate process, too. */
static json_int_t cookie_of(int ns)
{
    int ends[2];
    json_int_t ret = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return 0;
    AUTO_CLOSE int from = ends[0];
    AUTO_CLOSE int to = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        if (setns(ns, CLONE_NEWNET) == 0)
            ret = own_cookie();
        _exit(write_all(to, &ret, sizeof(ret)) < 0);
    }
    close_fd(&to);
    if (read_up_to(from, &ret, sizeof(ret)) != sizeof(ret))
        ret = 0;
    if (pid > 0)
        (void)process_wait(pid);
    return ret;
}

json_t *netns_describe(const char *path)
{
    AUTO_CLOSE int ns = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct stat st;
    return ns >= 0 && fstat(ns, &st) == 0
               ? json_pack("{s:s, s:I, s:I, s:I}", "path", path, "device", (json_int_t)st.st_dev,
                           "inode", (json_int_t)st.st_ino, "cookie", cookie_of(ns))
               : NULL;
}

/* The inode alone does not suffice: its number is used again. */
static bool is_described(const json_t *netns, const struct stat *st)
{
    json_int_t cookie = json_integer_value(json_object_get(netns, "cookie"));
    return json_is_string(netns) ||
           ((json_int_t)st->st_dev == json_integer_value(json_object_get(netns, "device")) &&
            (json_int_t)st->st_ino == json_integer_value(json_object_get(netns, "inode")) &&
            (!cookie || cookie == own_cookie()));
}

/* In a separate process: the caller stays where it is. */
void netns_release(const json_t *netns)
{
    /* Before there was more to say, a container's state had only the path. */
    const char *path =
        json_string_value(json_is_string(netns) ? netns : json_object_get(netns, "path"));
    AUTO_CLOSE int ns = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct stat st;
    if (ns < 0 || fstat(ns, &st) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        if (setns(ns, CLONE_NEWNET) == 0 && is_described(netns, &st))
            give_back();
        _exit(0);
    }
    if (pid > 0)
        (void)process_wait(pid);
}
