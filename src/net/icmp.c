/* ICMP and ICMPv6 from the guest: echo requests, to the gateway or through a ping socket of the
 * host, and neighbor solicitations. Everything else ends here. */
#include <errno.h>
#include <netinet/in.h>
#include <unistd.h>

#include "net/net_impl.h"

/* #syscalls:net sendto recvfrom */

enum { ECHO4 = 8, REPLY4 = 0, ECHO6 = 128, REPLY6 = 129, SOLICIT = 135, ADVERT = 136 };
enum { ECHO_MAX = 65535 - 60 };

/* --- neighbor discovery --------------------------------------------------------------------- */

/* We answer for every address on the link, so that packets to it get an ICMP error. */
static bool answers_for(const struct net *n, const struct net_addr *target)
{
    return (addr_prefix_equal(target, &n->cfg.guest6, 64) || net_link_local(target)) &&
           !addr_equal(target, &n->cfg.guest6);
}

static void solicit_input(struct net *n, const struct packet *p)
{
    const uint8_t *m = p->head + p->l4;
    static const struct net_addr unspecified;
    struct net_addr target;
    bool whole = p->ttl == 255 && p->l4_len >= 24 && p->head_len >= p->l4 + 24 && m[1] == 0;
    if (whole)
        target = addr_from6(m + 8);
    if (!whole || !answers_for(n, &target) || addr_equal(&p->src, &unspecified)) {
        n->stats.dropped[PACKET_TYPE]++;
        return;
    }
    uint8_t a[32] = {ADVERT, 0};
    a[4] = addr_equal(&target, &n->cfg.gateway6) ? 0xe0 : 0x60; /* router; asked for, certain */
    memcpy(a + 8, target.b, 16);
    a[24] = 2; /* option: link-layer address */
    a[25] = 1;
    memcpy(a + 26, n->cfg.gateway_mac, 6);
    (void)out_icmp(n, &target, &p->src, a, sizeof(a));
}

/* --- echo ------------------------------------------------------------------------------------ */

static void reply_to_guest(struct net *n, const struct net_addr *from, const struct net_addr *to,
                           uint16_t id, uint8_t *msg, size_t len)
{
    msg[0] = addr_is4(from) ? REPLY4 : REPLY6;
    msg[1] = 0;
    put16(msg + 4, id);
    (void)out_icmp(n, from, to, msg, len);
}

static struct udp_flow *ping_open(struct net *n, const struct net_flow_id *id)
{
    struct net_verdict v;
    if (!udp_allowed(n, id, &v))
        return NULL;
    int fd = udp_socket(&v.to, addr_is4(&v.to.addr) ? IPPROTO_ICMP : IPPROTO_ICMPV6);
    if (fd < 0) {
        /* The host may not let us ping. */
        bool refused = fd == -EACCES || fd == -EPERM || fd == -EPROTONOSUPPORT;
        n->stats.ping_refused += refused;
        out_unreachable(n, id, 0, refused ? UNREACH_ADMIN : UNREACH_NET);
        return NULL;
    }
    return udp_flow_new(n, id, PING_OUT, fd, &v);
}

static void echo_input(struct net *n, const struct packet *p)
{
    uint8_t *msg = n->scratch;
    if (p->l4_len > ECHO_MAX) {
        n->stats.dropped[PACKET_BAD]++;
        return;
    }
    size_t len = packet_read(p, p->l4, msg, p->l4_len);
    struct net_flow_id id = {.proto = p->proto,
                             .guest = {.addr = p->src, .port = be16(p->head + p->l4 + 4)},
                             .peer = {.addr = p->dst}};
    if (to_gateway(n, p)) {
        reply_to_guest(n, &p->dst, &p->src, id.guest.port, msg, len);
        return;
    }
    if (p->ttl <= 1 || p->dst.b[0] == 0xff) {
        n->stats.dropped[PACKET_TYPE]++;
        return;
    }
    struct flow *f = flow_find(n, &id);
    struct udp_flow *u = f ? udp_of(f) : ping_open(n, &id);
    if (!u || !udp_passes(u, DIR_OUT, len))
        return;
    u->used_ns = now_ns();
    msg[0] = p->ethertype == ETHERTYPE_V4 ? ECHO4 : ECHO6;
    if (send(u->f.src.fd, msg, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        udp_error(u, errno);
    else
        u->f.to_host += len;
}

void ping_readable(struct udp_flow *u)
{
    struct net *n = u->f.net;
    for (unsigned i = 0; i < 16 && !u->f.dead; i++) {
        ssize_t k = recv(u->f.src.fd, n->scratch, ECHO_MAX, MSG_DONTWAIT);
        if (k < 0) {
            if (errno != EAGAIN && errno != EINTR)
                udp_error(u, errno);
            return;
        }
        bool fits = (size_t)k <= 1480 || (n->link->caps & LINK_ANY_SIZE);
        if (k < 8 || !fits || !udp_passes(u, DIR_IN, (size_t)k))
            continue;
        u->answered = true;
        u->f.to_guest += (size_t)k;
        reply_to_guest(n, &u->f.id.peer.addr, &u->f.id.guest.addr, u->f.id.guest.port, n->scratch,
                       (size_t)k);
    }
}

void icmp_input(struct net *n, const struct packet *p)
{
    uint8_t type = p->head[p->l4];
    bool v4 = p->ethertype == ETHERTYPE_V4;
    if (type == (v4 ? ECHO4 : ECHO6))
        echo_input(n, p);
    else if (!v4 && type == SOLICIT)
        solicit_input(n, p);
    else
        n->stats.dropped[PACKET_TYPE]++;
}
