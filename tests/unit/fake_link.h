/* A network card for tests: it keeps the frames that the stack sends, and makes frames that a guest
 * could send. Header only. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "util/cleanup.h"
#include "util/iov.h"

enum { FL_FRAMES = 2048 };

struct fl_frame {
    struct link_offload off;
    size_t len;
    uint8_t *p;
};

struct fake_link {
    struct link link;
    bool full; /* no room */
    unsigned refused;
    struct fl_frame frame[FL_FRAMES];
    unsigned n, read; /* sent by the stack; looked at by the test */
    uint8_t *out;
    struct iovec room[2];
};

/* In two pieces, the first of an odd length, so that every path meets scattered buffers. */
static inline size_t fl_reserve(struct link *l, size_t min, size_t want, const struct iovec **iov,
                                unsigned *n)
{
    struct fake_link *f = CONTAINER_OF(l, struct fake_link, link);
    if (f->full || f->n - f->read == FL_FRAMES) {
        f->refused++;
        return 0;
    }
    if (min > want || want > LINK_FRAME_MAX || f->out)
        abort();
    f->out = malloc(want); /* exactly: a sanitizer sees what goes beyond */
    f->room[0] = (struct iovec){.iov_base = f->out, .iov_len = MIN(want, 17)};
    f->room[1] =
        (struct iovec){.iov_base = f->out + MIN(want, 17), .iov_len = want - MIN(want, 17)};
    *iov = f->room;
    *n = 2;
    return want;
}

static inline void fl_commit(struct link *l, const struct link_offload *o, size_t len)
{
    struct fake_link *f = CONTAINER_OF(l, struct fake_link, link);
    if (!f->out)
        abort();
    if (len == 0) {
        free(f->out);
    } else {
        struct fl_frame *r = &f->frame[f->n++ % FL_FRAMES];
        if (len > f->room[0].iov_len + f->room[1].iov_len || len < LINK_ETH)
            abort();
        if (o->csum && (size_t)o->csum_start + o->csum_offset + 2 > len)
            abort();
        *r = (struct fl_frame){.off = *o, .len = len, .p = f->out};
    }
    f->out = NULL;
}

static inline void fl_flush(struct link *l)
{
}

static const struct link_ops fl_ops = {fl_reserve, fl_commit, fl_flush};

static inline void fl_init(struct fake_link *f, unsigned caps)
{
    *f = (struct fake_link){.link = {.ops = &fl_ops, .caps = caps}};
}

/* The next frame that the stack has sent, or NULL; the caller frees it with fl_done. */
static inline struct fl_frame *fl_next(struct fake_link *f)
{
    return f->read == f->n ? NULL : &f->frame[f->read % FL_FRAMES];
}
/* The same, which must be there. */
static inline struct fl_frame *fl_must_next(struct fake_link *f)
{
    struct fl_frame *r = fl_next(f);
    if (!r)
        abort();
    return r;
}

static inline void fl_done(struct fake_link *f)
{
    free(f->frame[f->read++ % FL_FRAMES].p);
}
static inline void fl_drop_all(struct fake_link *f)
{
    while (fl_next(f))
        fl_done(f);
}

/* Gives a frame to the stack, from exact heap memory, in two pieces. */
static inline void fl_input(struct fake_link *f, const void *p, size_t len)
{
    struct link_offload o = {0};
    size_t cut = len / 3;
    uint8_t *a = malloc(cut + 1), *b = malloc(len - cut + 1);
    if (!a || !b)
        abort();
    memcpy(a, p, cut);
    memcpy(b, (const uint8_t *)p + cut, len - cut);
    struct iovec iov[2] = {{.iov_base = a, .iov_len = cut}, {.iov_base = b, .iov_len = len - cut}};
    f->link.user->input(f->link.ctx, &o, iov, 2, len);
    free(a);
    free(b);
}
static inline void fl_input_end(struct fake_link *f)
{
    f->link.user->input_end(f->link.ctx);
}

/* --- frames that a guest makes ---------------------------------------------------------------- */

static const uint8_t fl_guest_mac[6] = {2, 0, 0, 0, 0, 15}, fl_gateway_mac[6] = {2, 0, 0, 0, 0, 1};

static inline struct net_config fl_config(void)
{
    struct net_config c = {0};
    memcpy(c.guest_mac, fl_guest_mac, 6);
    memcpy(c.gateway_mac, fl_gateway_mac, 6);
    (void)addr_parse("10.0.2.15", &c.guest4);
    (void)addr_parse("10.0.2.2", &c.gateway4);
    (void)addr_parse("fd00:2::15", &c.guest6);
    (void)addr_parse("fd00:2::2", &c.gateway6);
    return c;
}

/* Ethernet and IPv4 or IPv6 headers; returns their length. */
static inline size_t fl_ip(uint8_t *h, const struct net_addr *src, const struct net_addr *dst,
                           uint8_t proto, size_t l4)
{
    memcpy(h, fl_gateway_mac, 6);
    memcpy(h + 6, fl_guest_mac, 6);
    put16(h + 12, addr_is4(src) ? ETHERTYPE_V4 : ETHERTYPE_V6);
    uint8_t *ip = h + LINK_ETH;
    if (addr_is4(src)) {
        memset(ip, 0, 20);
        ip[0] = 0x45;
        put16(ip + 2, (uint16_t)(20 + l4));
        ip[8] = 64;
        ip[9] = proto;
        memcpy(ip + 12, addr_bytes4(src), 4);
        memcpy(ip + 16, addr_bytes4(dst), 4);
        return LINK_ETH + 20;
    }
    memset(ip, 0, 8);
    ip[0] = 0x60;
    put16(ip + 4, (uint16_t)l4);
    ip[6] = proto;
    ip[7] = 255;
    memcpy(ip + 8, src->b, 16);
    memcpy(ip + 24, dst->b, 16);
    return LINK_ETH + 40;
}

struct fl_seg {
    uint16_t sport, dport;
    uint32_t seq, ack;
    uint8_t flags;
    uint16_t window;
    const void *data;
    size_t len;
    bool options; /* MSS and window scale, as in a SYN */
};

static inline void fl_tcp(struct fake_link *f, const struct net_addr *src,
                          const struct net_addr *dst, const struct fl_seg *s)
{
    static uint8_t frame[LINK_FRAME_MAX];
    static const uint8_t opts[8] = {2, 4, 0x05, 0xb4, 3, 3, 7, 0};
    size_t tl = s->options ? 28 : 20;
    size_t hl = fl_ip(frame, src, dst, PROTO_TCP, tl + s->len);
    uint8_t *t = frame + hl;
    memset(t, 0, 20);
    put16(t, s->sport);
    put16(t + 2, s->dport);
    put32(t + 4, s->seq);
    put32(t + 8, s->ack);
    t[12] = (uint8_t)(tl / 4 << 4);
    t[13] = s->flags;
    put16(t + 14, s->window);
    if (s->options)
        memcpy(t + 20, opts, 8);
    if (s->len > 0)
        memcpy(t + tl, s->data, s->len);
    fl_input(f, frame, hl + tl + s->len);
}

static inline void fl_udp(struct fake_link *f, const struct net_addr *src,
                          const struct net_addr *dst, uint16_t sport, uint16_t dport,
                          const void *data, size_t len)
{
    static uint8_t frame[LINK_FRAME_MAX];
    size_t hl = fl_ip(frame, src, dst, PROTO_UDP, 8 + len);
    uint8_t *u = frame + hl;
    put16(u, sport);
    put16(u + 2, dport);
    put16(u + 4, (uint16_t)(8 + len));
    put16(u + 6, 0);
    if (len > 0)
        memcpy(u + 8, data, len);
    fl_input(f, frame, hl + 8 + len);
}
