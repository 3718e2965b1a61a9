/* A guest's side of the socket device for tests, and an owner of streams that notes what it sees.
 * Header only; include it once per test. */
#pragma once

#include <errno.h>
#include <linux/virtio_vsock.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "unit.h"
#include "virtio/vsock.h"

enum {
    RX,
    TX,
    EVENT,
    QSIZE = 64,
    RX_BUF = 4096,
    TX_BUF = 8192,
    PORT = 1024,
    OP_REQUEST = 1,
    OP_RESPONSE,
    OP_RST,
    OP_SHUTDOWN,
    OP_RW,
    OP_CREDIT_UPDATE,
    OP_CREDIT_REQUEST,
};

/* What an owner has seen of its stream. */
struct owner {
    struct vsock_stream *s;
    size_t limit; /* how much more data() takes */
    size_t got;
    uint8_t *sink; /* optional */
    unsigned connected, writable, shutdown, closed;
    bool reset;
    bool abort_in_data, close_in_data, resume_in_data, close_in_shutdown;
    const uint8_t *to_send;
    size_t left;
};

struct fix {
    struct fake f;
    struct virtio_dev *dev;
    uint64_t rx_area, tx_area;
    struct owner owner[4];
    unsigned n_owners, refuse;
    uint32_t alloc, fwd; /* what the guest says of its buffer */
};

static inline void on_connected(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    assert_ptr_equal(s, o->s);
    o->connected++;
}

static inline size_t on_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    struct owner *o = ctx;
    assert_int_equal(o->closed, 0);
    assert_true(n > 0);
    size_t take = n < o->limit ? n : o->limit;
    if (o->sink)
        memcpy(o->sink + o->got, p, take);
    o->got += take;
    o->limit -= take;
    if (o->resume_in_data) {
        o->resume_in_data = false;
        o->limit = SIZE_MAX;
        vsock_resume(s);
    }
    if (o->abort_in_data || o->close_in_data) {
        o->s = NULL;
        if (o->abort_in_data)
            vsock_abort(s);
        else
            vsock_close(s);
    }
    return take;
}

static inline void on_writable(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    o->writable++;
    if (o->left > 0) {
        size_t n = vsock_send_buf(s, o->to_send, o->left);
        o->to_send += n;
        o->left -= n;
    }
}

static inline void on_shutdown(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    o->shutdown++;
    if (o->close_in_shutdown) {
        o->s = NULL;
        vsock_close(s);
    }
}

static inline void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct owner *o = ctx;
    o->closed++;
    o->reset = reset;
    o->s = NULL;
}

static const struct vsock_stream_ops ops = {on_connected, on_data, on_writable, on_shutdown,
                                            on_closed};

static inline int on_accept(struct vsock_stream *s, void *ctx)
{
    struct fix *x = ctx;
    if (x->refuse)
        return -ECONNREFUSED;
    struct owner *o = &x->owner[x->n_owners++ % 4];
    *o = (struct owner){.s = s, .limit = SIZE_MAX};
    vsock_set_ops(s, &ops, o);
    return 0;
}

static inline int accept_any(struct vsock_stream *s, void *ctx)
{
    static const struct vsock_stream_ops none;
    vsock_set_ops(s, &none, NULL);
    return 0;
}

static inline int setup(void **state)
{
    struct fix *x = calloc(1, sizeof(*x));
    fake_init(&x->f);
    assert_int_equal(virtio_vsock_new(&x->dev, VSOCK_GUEST_CID), 0);
    assert_int_equal(vsock_listen(x->dev, PORT, on_accept, x), 0);
    fake_attach(&x->f, x->dev, QSIZE, 0);
    x->rx_area = fake_alloc(&x->f, (size_t)QSIZE * RX_BUF, 16);
    x->tx_area = fake_alloc(&x->f, TX_BUF, 16);
    x->alloc = 1 << 20;
    *state = x;
    return 0;
}

static inline int teardown(void **state)
{
    struct fix *x = *state;
    fake_fini(&x->f);
    virtio_dev_free(x->dev);
    free(x);
    return 0;
}

/* --- the guest's side ------------------------------------------------------------------------ */

static inline void give_rx(struct fix *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t at = x->rx_area + (uint64_t)(x->f.q[RX].next_desc % QSIZE) * RX_BUF;
        struct fake_buf b = {at, RX_BUF, true};
        fake_add(&x->f, RX, &b, 1);
    }
    fake_kick(&x->f, RX);
    (void)fake_run(&x->f, 1000);
}

/* The next packet to the guest; its payload is at *data. */
static inline bool take(struct fix *x, struct virtio_vsock_hdr *h, const uint8_t **data)
{
    uint32_t id, len;
    if (!fake_used(&x->f, RX, &id, &len))
        return false;
    const uint8_t *p = fake_ptr(&x->f, x->rx_area + (uint64_t)id * RX_BUF);
    memcpy(h, p, sizeof(*h));
    assert_int_equal(len, sizeof(*h) + h->len);
    assert_int_equal(h->src_cid, VSOCK_HOST_CID);
    assert_int_equal(h->dst_cid, VSOCK_GUEST_CID);
    if (data)
        *data = p + sizeof(*h);
    return true;
}

/* Expects a packet with that op, and nothing before it. */
static inline struct virtio_vsock_hdr expect(struct fix *x, unsigned op)
{
    struct virtio_vsock_hdr h = {0};
    assert_true(take(x, &h, NULL));
    assert_int_equal(h.op, op);
    return h;
}

static inline void expect_none(struct fix *x)
{
    struct virtio_vsock_hdr h;
    assert_false(take(x, &h, NULL));
}

static inline struct virtio_vsock_hdr header(const struct fix *x, unsigned op, uint32_t guest_port,
                                             uint32_t host_port, uint32_t len)
{
    return (struct virtio_vsock_hdr){
        .src_cid = VSOCK_GUEST_CID,
        .dst_cid = VSOCK_HOST_CID,
        .src_port = guest_port,
        .dst_port = host_port,
        .len = len,
        .type = VIRTIO_VSOCK_TYPE_STREAM,
        .op = (uint16_t)op,
        .buf_alloc = x->alloc,
        .fwd_cnt = x->fwd,
    };
}

/* Queues a packet with `have` bytes of payload behind the header. */
static inline void queue_raw(struct fix *x, const struct virtio_vsock_hdr *h, const void *data,
                             uint32_t have)
{
    assert_true(have + 44 <= TX_BUF);
    memcpy(fake_ptr(&x->f, x->tx_area), h, sizeof(*h));
    if (data)
        memcpy(fake_ptr(&x->f, x->tx_area + 44), data, have);
    struct fake_buf b[] = {{x->tx_area, 44, false}, {x->tx_area + 44, have, false}};
    fake_add(&x->f, TX, b, have > 0 ? 2 : 1);
}

static inline void send_raw(struct fix *x, const struct virtio_vsock_hdr *h, const void *data,
                            uint32_t have)
{
    queue_raw(x, h, data, have);
    fake_kick(&x->f, TX);
    (void)fake_run(&x->f, 1000);
}

static inline void send_op(struct fix *x, unsigned op, uint32_t guest_port, uint32_t host_port)
{
    struct virtio_vsock_hdr h = header(x, op, guest_port, host_port, 0);
    send_raw(x, &h, NULL, 0);
}

static inline void send_data(struct fix *x, uint32_t guest_port, uint32_t host_port, const void *p,
                             uint32_t n)
{
    struct virtio_vsock_hdr h = header(x, OP_RW, guest_port, host_port, n);
    send_raw(x, &h, p, n);
}

static inline void send_shutdown(struct fix *x, uint32_t guest_port, uint32_t host_port,
                                 uint32_t flags)
{
    struct virtio_vsock_hdr h = header(x, OP_SHUTDOWN, guest_port, host_port, 0);
    h.flags = flags;
    send_raw(x, &h, NULL, 0);
}

/* A stream that the guest has opened from port 5000 + k. */
static inline struct owner *guest_stream(struct fix *x, unsigned k)
{
    struct owner *o = &x->owner[x->n_owners % 4];
    send_op(x, OP_REQUEST, 5000 + k, PORT);
    struct virtio_vsock_hdr h = expect(x, OP_RESPONSE);
    assert_int_equal(h.buf_alloc, VSOCK_CREDIT);
    assert_int_equal(h.dst_port, 5000 + k);
    assert_non_null(o->s);
    return o;
}

/* A stream that we have opened to guest port 7; *port is ours. */
static inline struct owner *host_stream(struct fix *x, uint32_t *port)
{
    struct owner *o = &x->owner[x->n_owners++ % 4];
    *o = (struct owner){.limit = SIZE_MAX};
    o->s = vsock_connect(x->dev, 7, &ops, o);
    assert_non_null(o->s);
    struct virtio_vsock_hdr h = expect(x, OP_REQUEST);
    *port = h.src_port;
    send_op(x, OP_RESPONSE, 7, *port);
    assert_int_equal(o->connected, 1);
    return o;
}

static inline unsigned n_streams(struct fix *x)
{
    struct vsock_stats st;
    vsock_stats(x->dev, &st);
    return st.streams;
}

static inline uint64_t n_violations(struct fix *x)
{
    struct vsock_stats st;
    vsock_stats(x->dev, &st);
    return st.violations;
}
