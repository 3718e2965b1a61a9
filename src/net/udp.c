/* UDP flows: one connected socket for each pair of ends, so that the host's kernel accepts packets
 * only from the peer, and reports closed ports. Bounded in number; the one idle for longest is
 * evicted. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "net/csum.h"
#include "net/net_impl.h"
#include "util/cleanup.h"
#include "util/iov.h"

/* #syscalls:net socket connect sendto sendmsg recvmsg recvfrom */

enum {
    ANSWERED_S = 120, /* kept after the last packet, if both ends have sent */
    SILENT_S = 30,    /* ... if only the guest has */
    DNS_S = 10,       /* ... or it was a question */
    PER_VISIT = 16,   /* datagrams from one socket before others get a turn */
};

static void on_host(struct loop_src *src, uint32_t events)
{
    struct flow *f = CONTAINER_OF(src, struct flow, src);
    flow_work(f);
}

static uint64_t lifetime_ns(const struct udp_flow *u)
{
    uint64_t s = u->f.id.peer.port == 53 ? DNS_S : u->answered ? ANSWERED_S : SILENT_S;
    return s * 1000000000ULL;
}

static void touch(struct udp_flow *u)
{
    u->used_ns = now_ns();
    node_unlink(&u->f.all);
    node_append(&u->f.net->udp_all, &u->f.all);
}

struct udp_flow *udp_flow_new(struct net *n, const struct net_flow_id *id, enum udp_kind kind,
                              int fd, const struct net_verdict *v)
{
    if (n->stats.udp_flows >= n->cfg.max_udp) {
        assert(node_linked(&n->udp_all));
        n->stats.udp_evicted++;
        flow_remove(CONTAINER_OF(n->udp_all.next, struct flow, all), "evicted to make room");
    }
    struct udp_flow *u = calloc(1, sizeof(*u));
    if (!u) {
        close_fd(&fd);
        return NULL;
    }
    u->f.net = n;
    u->f.id = *id;
    u->f.src = (struct loop_src){.fd = fd, .fn = on_host};
    u->kind = kind;
    u->used_ns = now_ns();
    flow_insert(&u->f, &n->udp_all);
    if (fd >= 0 && loop_add(n->loop, &u->f.src, EPOLLIN | EPOLLET) < 0) {
        flow_remove(&u->f, "out of descriptors");
        return NULL;
    }
    flow_allow(&u->f, v);
    n->stats.udp_opened++;
    return u;
}

int udp_socket(const struct net_end *to, int proto)
{
    AUTO_CLOSE int fd = socket(addr_is4(&to->addr) ? AF_INET : AF_INET6,
                               SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, proto);
    if (fd < 0)
        return -errno;
    struct sockaddr_storage a;
    socklen_t alen = end_to_sockaddr(to, &a);
    if (connect(fd, (struct sockaddr *)&a, alen) < 0)
        return -errno;
    return steal_fd(&fd);
}

static enum unreachable reason(int err)
{
    switch (err) {
    case ECONNREFUSED:
        return UNREACH_PORT;
    case EHOSTUNREACH:
        return UNREACH_HOST;
    case EACCES:
    case EPERM:
        return UNREACH_ADMIN;
    default:
        return UNREACH_NET;
    }
}

void udp_error(struct udp_flow *u, int err)
{
    if (err == EAGAIN || err == ENOBUFS || err == EINTR || err == EMSGSIZE) {
        u->f.net->stats.udp_dropped++;
        return;
    }
    out_unreachable(u->f.net, &u->f.id, 0, reason(err));
    if (err != ECONNREFUSED)
        flow_remove(&u->f, "failed");
}

bool udp_allowed(struct net *n, const struct net_flow_id *id, struct net_verdict *v)
{
    *v = (struct net_verdict){.action = NET_DENY, .to = id->peer, .fd = -1};
    n->hooks->verdict(n->ctx, id, v);
    if (v->action == NET_ALLOW)
        return true;
    n->stats.udp_denied++;
    out_unreachable(n, id, 0, UNREACH_ADMIN);
    return false;
}

static struct udp_flow *open_out(struct net *n, const struct net_flow_id *id)
{
    struct net_verdict v;
    if (!udp_allowed(n, id, &v))
        return NULL;
    int fd = udp_socket(&v.to, IPPROTO_UDP);
    if (fd < 0) {
        out_unreachable(n, id, 0, reason(-fd));
        return NULL;
    }
    return udp_flow_new(n, id, UDP_OUT, fd, &v);
}

bool to_gateway(const struct net *n, const struct packet *p)
{
    return addr_equal(&p->dst, &n->cfg.gateway4) ||
           (n->has6 && addr_equal(&p->dst, &n->cfg.gateway6));
}

/* For the gateway itself; false if the verdict has to decide after all. */
static bool local_datagram(struct net *n, const struct packet *p, const struct net_flow_id *id)
{
    if (!n->hooks->datagram)
        return false;
    size_t len = packet_read(p, p->payload, n->scratch, p->payload_len);
    return n->hooks->datagram(n->ctx, id, n->scratch, len);
}

bool udp_passes(struct udp_flow *u, enum net_dir dir, size_t len)
{
    size_t packet = MAX(len, (size_t)1);
    if (flow_grant(&u->f, dir, packet, packet) == 0) {
        u->f.net->stats.udp_limited++;
        return false;
    }
    flow_charge(&u->f, dir, len, packet);
    return true;
}

void udp_input(struct net *n, const struct packet *p)
{
    struct net_flow_id id = {.proto = PROTO_UDP,
                             .guest = {.addr = p->src, .port = p->sport},
                             .peer = {.addr = p->dst, .port = p->dport}};
    struct flow *f = flow_find(n, &id);
    if (!f && to_gateway(n, p) && local_datagram(n, p, &id))
        return;
    struct udp_flow *u = f ? udp_of(f) : open_out(n, &id);
    if (!u || !udp_passes(u, DIR_OUT, p->payload_len))
        return;
    struct iovec iov[LINK_IOV_MAX];
    struct sockaddr_storage a;
    struct msghdr m = {.msg_iov = iov};
    m.msg_iovlen = iov_slice(iov, LINK_IOV_MAX, p->iov, p->n_iov, p->payload, p->payload_len);
    int fd = u->f.src.fd;
    if (u->kind == UDP_IN) {
        m.msg_name = &a;
        m.msg_namelen = end_to_sockaddr(&u->real, &a);
        fd = u->pub->src.fd;
    }
    touch(u);
    if (sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        udp_error(u, errno);
    else
        u->f.to_host += p->payload_len;
}

/* --- to the guest ---------------------------------------------------------------------------- */

/* Writes the UDP header in front of what is already in the reserved room; fills in *o. */
static void finish_datagram(struct net *n, const struct iovec *iov, unsigned n_iov,
                            const struct net_end *from, const struct net_end *to, size_t len)
{
    uint8_t h[FRAME_HEAD_MAX];
    size_t l4 = 8 + len;
    size_t hl = out_headers(n, h, &from->addr, &to->addr, PROTO_UDP, l4);
    struct link_offload o = {0};
    put16(h + hl, from->port);
    put16(h + hl + 2, to->port);
    put16(h + hl + 4, (uint16_t)l4);
    uint64_t sum = csum_pseudo(&from->addr, &to->addr, PROTO_UDP, (uint32_t)l4);
    uint16_t c;
    if (n->link->caps & LINK_CSUM) {
        o = (struct link_offload){.csum = true, .csum_start = (uint16_t)hl, .csum_offset = 6};
        c = csum_fold(sum);
    } else {
        sum = csum_add(sum, h + hl, 6);
        c = csum_finish(csum_add_iov(sum, iov, n_iov, hl + 8, len));
        c = c == 0 ? 0xffff : c;
    }
    memcpy(h + hl + 6, &c, 2);
    (void)iov_write(iov, n_iov, 0, h, hl + 8);
    n->link->ops->commit(n->link, &o, hl + l4);
}

static size_t head_len(const struct net_addr *a)
{
    return LINK_ETH + (addr_is4(a) ? 20 : 40) + 8;
}

static size_t payload_max(const struct net *n, const struct net_addr *a)
{
    return (n->link->caps & LINK_ANY_SIZE ? 65535U : 1500U) + LINK_ETH - head_len(a);
}

void net_send_udp(struct net *n, const struct net_end *from, const struct net_end *to,
                  const void *p, size_t len)
{
    const struct iovec *iov;
    unsigned n_iov;
    size_t hl = head_len(&from->addr);
    if (len > payload_max(n, &from->addr) ||
        n->link->ops->reserve(n->link, hl + len, hl + len, &iov, &n_iov) == 0) {
        n->stats.udp_dropped++;
        return;
    }
    (void)iov_write(iov, n_iov, hl, p, len);
    finish_datagram(n, iov, n_iov, from, to, len);
    n->link->ops->flush(n->link);
}

/* Moves one datagram from a socket straight into the guest. 1: done; 0: nothing there; -ENOBUFS:
 * the guest has no room; else the socket's error. */
static int receive_one(struct udp_flow *u)
{
    struct net *n = u->f.net;
    const struct iovec *room;
    struct iovec iov[LINK_IOV_MAX];
    unsigned n_room;
    size_t hl = head_len(&u->f.id.peer.addr), max = payload_max(n, &u->f.id.peer.addr);
    size_t got = n->link->ops->reserve(n->link, LINK_ETH + 1500, hl + max, &room, &n_room);
    if (got == 0)
        return -ENOBUFS;
    struct msghdr m = {.msg_iov = iov};
    m.msg_iovlen = iov_slice(iov, LINK_IOV_MAX, room, n_room, hl, got - hl);
    ssize_t k = recvmsg(u->f.src.fd, &m, MSG_DONTWAIT);
    if (k < 0 || (m.msg_flags & MSG_TRUNC)) {
        int r = k < 0 ? -errno : 1;
        n->link->ops->commit(n->link, NULL, 0);
        n->stats.udp_dropped += k >= 0;
        return r == -EAGAIN || r == -EINTR ? 0 : r;
    }
    finish_datagram(n, room, n_room, &u->f.id.peer, &u->f.id.guest, (size_t)k);
    flow_charge(&u->f, DIR_IN, (size_t)k, MAX((size_t)k, (size_t)1));
    u->f.to_guest += (size_t)k;
    u->answered = true;
    return 1;
}

void udp_work(struct udp_flow *u)
{
    if (u->kind == PING_OUT) {
        ping_readable(u);
        return;
    }
    if (u->kind != UDP_OUT)
        return;
    int r = 1;
    for (unsigned i = 0; i < PER_VISIT && r > 0; i++) {
        if (flow_grant(&u->f, DIR_IN, RATE_PACKET, RATE_PACKET) == 0)
            return; /* they stay in the socket until it is called */
        r = receive_one(u);
    }
    if (r == -ENOBUFS) {
        assert(!node_linked(&u->f.work));
        node_append(&u->f.net->blocked, &u->f.work);
        return;
    }
    if (r < 0)
        udp_error(u, -r);
    else
        touch(u);
    if (r != 0) /* edge triggered: go on until it is empty */
        flow_work(&u->f);
}

/* --- published ports ------------------------------------------------------------------------- */

static struct udp_flow *flow_in(struct published *pub, const struct net_end *peer)
{
    struct net *n = pub->net;
    struct net_flow_id id = net_inbound_id(pub, peer);
    struct flow *f = flow_find(n, &id);
    if (f)
        return udp_of(f)->pub == pub && end_equal(&udp_of(f)->real, peer) ? udp_of(f) : NULL;
    struct net_verdict v = {.action = NET_DENY, .to = id.guest, .fd = -1};
    n->hooks->verdict(n->ctx, &id, &v);
    if (v.action != NET_ALLOW) {
        n->stats.udp_denied++;
        return NULL;
    }
    struct udp_flow *u = udp_flow_new(n, &id, UDP_IN, -1, &v);
    if (u) {
        u->pub = pub;
        u->real = *peer;
    }
    return u;
}

void udp_published(struct published *pub)
{
    struct net *n = pub->net;
    for (unsigned i = 0; i < PER_VISIT && pub->src.fd >= 0; i++) {
        struct sockaddr_storage a;
        socklen_t alen = sizeof(a);
        struct net_end peer;
        ssize_t k = recvfrom(pub->src.fd, n->scratch, sizeof(n->scratch), MSG_DONTWAIT,
                             (struct sockaddr *)&a, &alen);
        if (k < 0)
            return;
        if (!end_from_sockaddr(&a, &peer))
            continue;
        struct udp_flow *u = flow_in(pub, &peer);
        if (!u || !udp_passes(u, DIR_IN, (size_t)k))
            continue;
        u->answered = true;
        touch(u);
        u->f.to_guest += (size_t)k;
        net_send_udp(n, &u->f.id.peer, &u->f.id.guest, n->scratch, (size_t)k);
    }
}

void udp_tick(struct net *n, uint64_t now)
{
    struct node *next;
    for (struct node *at = n->udp_all.next; at != &n->udp_all; at = next) {
        next = at->next;
        struct udp_flow *u = udp_of(CONTAINER_OF(at, struct flow, all));
        if (now - u->used_ns > lifetime_ns(u))
            flow_remove(&u->f, "idle");
    }
}
