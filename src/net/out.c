/* Frames to the guest: headers, small messages, errors. */
#include "net/csum.h"
#include "net/net_impl.h"
#include "util/iov.h"

enum { OUT_TTL = 64 };

static size_t headers4(struct net *n, uint8_t *h, const struct net_addr *src,
                       const struct net_addr *dst, uint8_t proto, size_t l4_len)
{
    memset(h, 0, 20);
    h[0] = 0x45;
    put16(h + 2, (uint16_t)(20 + l4_len));
    put16(h + 4, n->ip_id++);
    h[6] = 0x40; /* do not fragment */
    h[8] = OUT_TTL;
    h[9] = proto;
    memcpy(h + 12, addr_bytes4(src), 4);
    memcpy(h + 16, addr_bytes4(dst), 4);
    uint16_t sum = csum_finish(csum_add(0, h, 20));
    memcpy(h + 10, &sum, 2);
    return 20;
}

static size_t headers6(uint8_t *h, const struct net_addr *src, const struct net_addr *dst,
                       uint8_t proto, size_t l4_len)
{
    memset(h, 0, 8);
    h[0] = 0x60;
    put16(h + 4, (uint16_t)l4_len);
    h[6] = proto;
    h[7] = proto == PROTO_ICMP6 ? 255 : OUT_TTL;
    memcpy(h + 8, src->b, 16);
    memcpy(h + 24, dst->b, 16);
    return 40;
}

size_t out_headers(struct net *n, uint8_t *h, const struct net_addr *src,
                   const struct net_addr *dst, uint8_t proto, size_t l4_len)
{
    bool v4 = addr_is4(src);
    memcpy(h, n->cfg.guest_mac, 6);
    memcpy(h + 6, n->cfg.gateway_mac, 6);
    put16(h + 12, v4 ? ETHERTYPE_V4 : ETHERTYPE_V6);
    h += LINK_ETH;
    return LINK_ETH +
           (v4 ? headers4(n, h, src, dst, proto, l4_len) : headers6(h, src, dst, proto, l4_len));
}

bool out_frame(struct net *n, const uint8_t *head, size_t head_len, const void *p, size_t len)
{
    static const struct link_offload plain;
    const struct iovec *iov;
    unsigned n_iov;
    size_t total = head_len + len;
    if (n->link->ops->reserve(n->link, total, total, &iov, &n_iov) == 0)
        return false;
    (void)iov_write(iov, n_iov, 0, head, head_len);
    if (len > 0)
        (void)iov_write(iov, n_iov, head_len, p, len);
    n->link->ops->commit(n->link, &plain, total);
    return true;
}

bool out_icmp(struct net *n, const struct net_addr *src, const struct net_addr *dst,
              const uint8_t *msg, size_t len)
{
    uint8_t h[FRAME_HEAD_MAX], fixed[4];
    bool v4 = addr_is4(src);
    uint8_t proto = v4 ? PROTO_ICMP : PROTO_ICMP6;
    size_t hl = out_headers(n, h, src, dst, proto, len);
    uint64_t sum = v4 ? 0 : csum_pseudo(src, dst, proto, (uint32_t)len);
    sum = csum_add(sum, msg, 2);
    sum = csum_add(sum, msg + 4, len - 4);
    uint16_t c = csum_finish(sum);
    memcpy(fixed, msg, 2);
    memcpy(fixed + 2, &c, 2);
    memcpy(h + hl, fixed, 4);
    return out_frame(n, h, hl + 4, msg + 4, len - 4);
}

void out_unreachable(struct net *n, const struct net_flow_id *id, uint32_t seq,
                     enum unreachable why)
{
    static const uint8_t code4[] = {0, 1, 3, 13}, code6[] = {0, 3, 4, 1};
    bool v4 = addr_is4(&id->guest.addr);
    /* What the guest sent, as far as needed to identify it: IP and eight bytes of transport. */
    uint8_t msg[8 + 40 + 20] = {v4 ? 3 : 1, v4 ? code4[why] : code6[why]};
    uint8_t frame[FRAME_HEAD_MAX];
    size_t l4 = id->proto == PROTO_TCP ? 20 : 8;
    size_t hl = out_headers(n, frame, &id->guest.addr, &id->peer.addr, id->proto, l4) - LINK_ETH;
    memcpy(msg + 8, frame + LINK_ETH, hl);
    uint8_t *t = msg + 8 + hl;
    if (id->proto == PROTO_TCP || id->proto == PROTO_UDP) {
        put16(t, id->guest.port);
        put16(t + 2, id->peer.port);
        if (id->proto == PROTO_UDP)
            put16(t + 4, 8);
        else
            put32(t + 4, seq);
    } else { /* an echo request; its identifier is the guest's port */
        t[0] = v4 ? 8 : 128;
        put16(t + 4, id->guest.port);
    }
    const struct net_addr *from = v4 ? &n->cfg.gateway4 : &n->cfg.gateway6;
    (void)out_icmp(n, from, &id->guest.addr, msg, 8 + hl + l4);
}
