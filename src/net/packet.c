#include "net/packet.h"

#include "util/cleanup.h"
#include "util/iov.h"

enum { TCP_OPT_END, TCP_OPT_NOP, TCP_OPT_MSS, TCP_OPT_WSCALE };
enum { V6_HOP = 0, V6_ROUTING = 43, V6_FRAGMENT = 44, V6_DEST = 60 };

/* n bytes of the header copy from off on, or NULL. */
static const uint8_t *at(const struct packet *p, size_t off, size_t n)
{
    return off <= p->head_len && n <= p->head_len - off ? p->head + off : NULL;
}

size_t packet_read(const struct packet *p, size_t off, void *to, size_t n)
{
    return iov_read(p->iov, p->n_iov, off, to, n);
}

/* Source routes are the only option that would matter. */
static bool v4_options_ok(const uint8_t *o, size_t n)
{
    while (n > 0 && o[0] != 0) {
        if (o[0] == 1) {
            o++;
            n--;
            continue;
        }
        if (n < 2 || o[1] < 2 || o[1] > n || o[0] == 131 || o[0] == 137)
            return false;
        n -= o[1];
        o += o[1];
    }
    return true;
}

static enum packet_fault parse_v4(struct packet *p)
{
    const uint8_t *h = at(p, p->l3, 20);
    if (!h)
        return PACKET_SHORT;
    size_t ihl = (size_t)(h[0] & 15) * 4, total = be16(h + 2);
    if (h[0] >> 4 != 4 || ihl < 20 || total < ihl)
        return PACKET_BAD;
    if (!at(p, p->l3, ihl) || total > p->len - p->l3)
        return PACKET_SHORT;
    if (!v4_options_ok(h + 20, ihl - 20))
        return PACKET_BAD;
    uint16_t frag = be16(h + 6);
    p->frag_id = be16(h + 4);
    p->more = frag & 0x2000;
    p->frag_off = (uint32_t)(frag & 0x1fff) * 8;
    p->fragment = p->more || p->frag_off != 0;
    p->ttl = h[8];
    p->proto = h[9];
    p->src = addr_from4(h + 12);
    p->dst = addr_from4(h + 16);
    p->l4 = p->l3 + ihl;
    p->l4_len = total - ihl;
    return PACKET_OK;
}

static enum packet_fault parse_v6(struct packet *p)
{
    const uint8_t *h = at(p, p->l3, 40);
    if (!h)
        return PACKET_SHORT;
    if (h[0] >> 4 != 6)
        return PACKET_BAD;
    size_t left = be16(h + 4);
    if (left > p->len - p->l3 - 40)
        return PACKET_SHORT;
    uint8_t next = h[6];
    p->ttl = h[7];
    p->src = addr_from6(h + 8);
    p->dst = addr_from6(h + 24);
    if (addr_is4(&p->src) || addr_is4(&p->dst)) /* mapped addresses are never valid in packets */
        return PACKET_BAD;
    p->l4 = p->l3 + 40;
    for (unsigned i = 0; next == V6_HOP || next == V6_DEST || next == V6_FRAGMENT; i++) {
        const uint8_t *e = at(p, p->l4, 8);
        if (!e || left < 8)
            return PACKET_SHORT;
        if (i == PACKET_EXT_MAX || p->fragment) /* what follows a fragment header is payload */
            return PACKET_BAD;
        size_t n = 8;
        if (next == V6_FRAGMENT) {
            p->fragment = true;
            p->frag_off = be16(e + 2) & 0xfff8;
            p->more = e[3] & 1;
            p->frag_id = be32(e + 4);
        } else {
            n = ((size_t)e[1] + 1) * 8;
        }
        if (n > left)
            return PACKET_SHORT;
        next = e[0];
        p->l4 += n;
        left -= n;
    }
    if (p->fragment && !p->more && p->frag_off == 0)
        p->fragment = false; /* whole after all */
    if (next == V6_ROUTING)
        return PACKET_BAD;
    p->proto = next;
    p->l4_len = left;
    return PACKET_OK;
}

static bool tcp_options(struct packet_tcp *t, const uint8_t *o, size_t n)
{
    t->mss = 0;
    t->wscale = -1;
    while (n > 0 && o[0] != TCP_OPT_END) {
        if (o[0] == TCP_OPT_NOP) {
            o++;
            n--;
            continue;
        }
        if (n < 2 || o[1] < 2 || o[1] > n)
            return false;
        if (o[0] == TCP_OPT_MSS && o[1] == 4)
            t->mss = be16(o + 2);
        if (o[0] == TCP_OPT_WSCALE && o[1] == 3)
            t->wscale = (int8_t)MIN(o[2], 14);
        n -= o[1];
        o += o[1];
    }
    return true;
}

static enum packet_fault parse_tcp(struct packet *p)
{
    const uint8_t *h = at(p, p->l4, 20);
    if (!h || p->l4_len < 20)
        return PACKET_SHORT;
    size_t hl = (size_t)(h[12] >> 4) * 4;
    if (hl < 20)
        return PACKET_BAD;
    if (hl > p->l4_len || !at(p, p->l4, hl))
        return PACKET_SHORT;
    p->sport = be16(h);
    p->dport = be16(h + 2);
    p->tcp = (struct packet_tcp){
        .seq = be32(h + 4), .ack = be32(h + 8), .flags = h[13] & 63, .window = be16(h + 14)};
    if (!tcp_options(&p->tcp, h + 20, hl - 20) || p->sport == 0 || p->dport == 0)
        return PACKET_BAD;
    p->payload = p->l4 + hl;
    p->payload_len = p->l4_len - hl;
    return PACKET_OK;
}

static enum packet_fault parse_udp(struct packet *p)
{
    const uint8_t *h = at(p, p->l4, 8);
    if (!h || p->l4_len < 8)
        return PACKET_SHORT;
    size_t len = be16(h + 4);
    p->sport = be16(h);
    p->dport = be16(h + 2);
    if (len < 8 || p->dport == 0)
        return PACKET_BAD;
    if (len > p->l4_len)
        return PACKET_SHORT;
    p->payload = p->l4 + 8;
    p->payload_len = len - 8;
    return PACKET_OK;
}

static enum packet_fault parse_l4(struct packet *p)
{
    bool v4 = p->ethertype == ETHERTYPE_V4;
    if (p->proto == PROTO_TCP)
        return parse_tcp(p);
    if (p->proto == PROTO_UDP)
        return parse_udp(p);
    if (p->proto == (v4 ? PROTO_ICMP : PROTO_ICMP6)) {
        p->payload = p->l4;
        p->payload_len = p->l4_len;
        return at(p, p->l4, 8) && p->l4_len >= 8 ? PACKET_OK : PACKET_SHORT;
    }
    return PACKET_TYPE;
}

enum packet_fault packet_parse(struct packet *p, const struct link_offload *off,
                               const struct iovec *iov, unsigned n, size_t len)
{
    /* Everything except the header copy, which is filled below. */
    p->off = off;
    p->iov = iov;
    p->n_iov = n;
    p->len = len;
    p->fragment = p->more = false;
    p->frag_off = p->frag_id = 0;
    p->sport = p->dport = 0;
    p->payload = p->payload_len = 0;
    p->head_len = iov_read(iov, n, 0, p->head, MIN(len, (size_t)PACKET_HEAD_MAX));
    if (p->head_len < LINK_ETH)
        return PACKET_SHORT;
    memcpy(p->dst_mac, p->head, 6);
    memcpy(p->src_mac, p->head + 6, 6);
    p->ethertype = be16(p->head + 12);
    p->l3 = LINK_ETH;
    enum packet_fault f;
    if (p->ethertype == ETHERTYPE_V4)
        f = parse_v4(p);
    else if (p->ethertype == ETHERTYPE_V6)
        f = parse_v6(p);
    else
        return p->ethertype == ETHERTYPE_ARP_ ? PACKET_OK : PACKET_TYPE;
    if (f != PACKET_OK || p->fragment)
        return f;
    return parse_l4(p);
}
