/* TCP segments to the guest. Payload goes from the host's socket straight into the guest's receive
 * buffers; the headers are put in front once its length is known. */
#include <errno.h>

#include "net/csum.h"
#include "net/net_impl.h"
#include "util/cleanup.h"
#include "util/iov.h"

enum { TCP_HEAD = 20, SYN_OPTIONS = 8 };

/* The window field: how much the guest may send now; moves rcv_edge accordingly. */
static uint32_t tcp_window(struct tcp_flow *t)
{
    size_t free_flow = NET_HELD_FLOW_MAX - buf_len(&t->held);
    size_t held = t->f.net->stats.held;
    size_t free_all = held < NET_HELD_MAX ? (NET_HELD_MAX - held) / 4 : 0;
    size_t room = MIN(free_flow, free_all);
    unsigned scale = t->scaled ? WSCALE : 0;
    uint32_t promised = t->rcv_edge - t->rcv_nxt;
    uint32_t field = (uint32_t)MIN(room >> scale, (size_t)65535);
    /* What was promised is accepted, but never more: a window that does not fit the scale is
     * rounded down, or the guest would send bytes that must be dropped. */
    if (field << scale > promised)
        t->rcv_edge = t->rcv_nxt + (field << scale);
    else
        field = MIN(promised >> scale, 65535U);
    return field;
}

/* Writes the TCP header after hl bytes of other headers; returns the total length. */
static size_t write_tcp(struct tcp_flow *t, uint8_t *h, uint8_t flags, uint32_t seq)
{
    size_t len = TCP_HEAD;
    memset(h, 0, TCP_HEAD);
    put16(h, t->f.id.peer.port);
    put16(h + 2, t->f.id.guest.port);
    put32(h + 4, seq);
    if (flags & SEG_ACK)
        put32(h + 8, t->rcv_nxt);
    h[13] = flags;
    if (flags & SEG_SYN) {
        uint8_t *o = h + TCP_HEAD;
        o[0] = 2;
        o[1] = 4;
        put16(o + 2, addr_is4(&t->f.id.guest.addr) ? MSS4 : MSS6);
        len += 4;
        if (t->scaled) {
            o[4] = 3;
            o[5] = 3;
            o[6] = WSCALE;
            o[7] = 0;
            len += 4;
        }
        put16(h + 14, 65535);
        t->rcv_edge = t->rcv_nxt + (flags & SEG_ACK ? 65535 : 0);
    } else if (!(flags & SEG_RST)) {
        put16(h + 14, (uint16_t)tcp_window(t));
    }
    h[12] = (uint8_t)(len / 4 << 4);
    if (flags & SEG_ACK) {
        t->rcv_acked = t->rcv_nxt;
        t->due &= ~(unsigned)DUE_ACK;
    }
    return len;
}

/* Writes the headers in front of the payload, which is already in the reserved room, and sends
 * it. */
static void finish(struct tcp_flow *t, const struct iovec *iov, unsigned n_iov, uint8_t flags,
                   uint32_t seq, size_t len)
{
    struct net *n = t->f.net;
    const struct net_addr *src = &t->f.id.peer.addr, *dst = &t->f.id.guest.addr;
    uint8_t h[FRAME_HEAD_MAX];
    bool v4 = addr_is4(src);
    size_t ip = LINK_ETH + (v4 ? 20 : 40);
    size_t tl = write_tcp(t, h + ip, flags, seq);
    (void)out_headers(n, h, src, dst, PROTO_TCP, tl + len);
    struct link_offload o = {0};
    uint64_t sum = csum_pseudo(src, dst, PROTO_TCP, (uint32_t)(tl + len));
    uint16_t c;
    if (n->link->caps & LINK_CSUM) {
        o = (struct link_offload){.csum = true,
                                  .csum_start = (uint16_t)ip,
                                  .csum_offset = 16,
                                  .hdr_len = (uint16_t)(ip + tl)};
        if (len > t->mss) {
            o.gso = v4 ? LINK_GSO_TCP4 : LINK_GSO_TCP6;
            o.gso_size = t->mss;
        }
        c = csum_fold(sum);
    } else {
        sum = csum_add(sum, h + ip, tl);
        c = csum_finish(csum_add_iov(sum, iov, n_iov, ip + tl, len));
    }
    memcpy(h + ip + 16, &c, 2);
    (void)iov_write(iov, n_iov, 0, h, ip + tl);
    n->link->ops->commit(n->link, &o, ip + tl + len);
}

static size_t head_len(const struct tcp_flow *t)
{
    return LINK_ETH + (addr_is4(&t->f.id.peer.addr) ? 20U : 40U) + TCP_HEAD;
}

bool tcp_send(struct tcp_flow *t, uint8_t flags, uint32_t seq)
{
    const struct iovec *iov;
    unsigned n_iov;
    struct link *l = t->f.net->link;
    size_t len = head_len(t) + (flags & SEG_SYN ? SYN_OPTIONS : 0);
    if (l->ops->reserve(l, len, len, &iov, &n_iov) == 0)
        return false;
    finish(t, iov, n_iov, flags, seq, 0);
    return true;
}

/* In answer to a segment that belongs to no flow. */
void tcp_send_reset(struct net *n, const struct packet *p)
{
    if (p->tcp.flags & SEG_RST)
        return;
    uint8_t h[FRAME_HEAD_MAX];
    size_t hl = out_headers(n, h, &p->dst, &p->src, PROTO_TCP, TCP_HEAD);
    uint8_t *t = h + hl;
    memset(t, 0, TCP_HEAD);
    put16(t, p->dport);
    put16(t + 2, p->sport);
    t[12] = TCP_HEAD / 4 << 4;
    t[13] = SEG_RST;
    if (p->tcp.flags & SEG_ACK) {
        put32(t + 4, p->tcp.ack);
    } else {
        uint32_t len =
            (uint32_t)p->payload_len + !!(p->tcp.flags & SEG_SYN) + !!(p->tcp.flags & SEG_FIN);
        put32(t + 8, p->tcp.seq + len);
        t[13] |= SEG_ACK;
    }
    uint64_t sum = csum_pseudo(&p->dst, &p->src, PROTO_TCP, TCP_HEAD);
    uint16_t c = csum_finish(csum_add(sum, t, TCP_HEAD));
    memcpy(t + 16, &c, 2);
    (void)out_frame(n, h, hl + TCP_HEAD, NULL, 0);
}

/* --- data ------------------------------------------------------------------------------------ */

/* How many bytes may go out now; also 0 if it is better to wait for a larger window. */
static size_t sendable(const struct tcp_flow *t)
{
    uint32_t in_flight = t->snd_nxt - t->snd_una;
    if (in_flight >= t->snd_wnd)
        return 0;
    size_t room = t->snd_wnd - in_flight;
    if (room < t->mss && in_flight > 0)
        return 0;
    return MIN(room, tcp_kept_room(t));
}

static size_t segment_max(const struct tcp_flow *t)
{
    unsigned need = addr_is4(&t->f.id.peer.addr) ? LINK_TSO4 : LINK_TSO6;
    if (!(t->f.net->link->caps & need))
        return t->mss;
    return (65535 - 60) / (size_t)t->mss * t->mss;
}

static enum pump send_fin(struct tcp_flow *t)
{
    if (!tcp_send(t, SEG_FIN | SEG_ACK, t->fin_seq))
        return PUMP_BLOCKED;
    t->snd_nxt = t->fin_seq + 1;
    if (seq_lt(t->snd_max, t->snd_nxt))
        t->snd_max = t->snd_nxt;
    return PUMP_IDLE;
}

/* One segment of up to 64 KiB. */
enum pump tcp_pump(struct tcp_flow *t)
{
    struct link *l = t->f.net->link;
    const struct iovec *room;
    struct iovec iov[LINK_IOV_MAX];
    unsigned n_room;

    if (t->host_eof && t->snd_nxt == t->fin_seq)
        return send_fin(t);
    bool again = seq_lt(t->snd_nxt, t->snd_max);
    size_t want = sendable(t), hl = head_len(t);
    if (want == 0 || !(t->readable || again) || (t->host_eof && seq_lt(t->fin_seq, t->snd_nxt)))
        return PUMP_IDLE;
    want = MIN(want, segment_max(t));
    want = flow_grant(&t->f, DIR_IN, want, t->mss);
    if (want == 0)
        return PUMP_IDLE; /* until it is called */
    size_t got = l->ops->reserve(l, hl + MIN(want, t->mss), hl + want, &room, &n_room);
    if (got == 0)
        return PUMP_BLOCKED;
    unsigned n = iov_slice(iov, LINK_IOV_MAX, room, n_room, hl, got - hl);
    ssize_t k = tcp_fetch(t, iov, n, got - hl);
    if (k <= 0) {
        l->ops->commit(l, NULL, 0);
        if (k == 0 && t->host_eof && t->snd_nxt == t->fin_seq)
            return send_fin(t);
        if (k < 0 && k != -EAGAIN)
            tcp_abort(t, "reset by the peer");
        return PUMP_IDLE;
    }
    finish(t, room, n_room, (size_t)k < got - hl ? SEG_ACK | SEG_PSH : SEG_ACK, t->snd_nxt,
           (size_t)k);
    if (!again)
        t->f.to_guest += (size_t)k;
    t->snd_nxt += (uint32_t)k;
    if (seq_lt(t->snd_max, t->snd_nxt))
        t->snd_max = t->snd_nxt;
    flow_charge(&t->f, DIR_IN, (size_t)k, t->mss);
    net_tick_soon(t->f.net);
    return PUMP_MORE;
}
