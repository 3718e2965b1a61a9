/* The socket device: streams both ways, back-pressure, and a guest that lies. */
#include <errno.h>
#include <linux/virtio_vsock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"
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

static void on_connected(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    assert_ptr_equal(s, o->s);
    o->connected++;
}

static size_t on_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
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

static void on_writable(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    o->writable++;
    if (o->left > 0) {
        size_t n = vsock_send_buf(s, o->to_send, o->left);
        o->to_send += n;
        o->left -= n;
    }
}

static void on_shutdown(struct vsock_stream *s, void *ctx)
{
    struct owner *o = ctx;
    o->shutdown++;
    if (o->close_in_shutdown) {
        o->s = NULL;
        vsock_close(s);
    }
}

static void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct owner *o = ctx;
    (void)s;
    o->closed++;
    o->reset = reset;
    o->s = NULL;
}

static const struct vsock_stream_ops ops = {on_connected, on_data, on_writable, on_shutdown,
                                            on_closed};

static int on_accept(struct vsock_stream *s, void *ctx)
{
    struct fix *x = ctx;
    if (x->refuse)
        return -ECONNREFUSED;
    struct owner *o = &x->owner[x->n_owners++ % 4];
    *o = (struct owner){.s = s, .limit = SIZE_MAX};
    vsock_set_ops(s, &ops, o);
    return 0;
}

static int accept_any(struct vsock_stream *s, void *ctx)
{
    (void)ctx;
    static const struct vsock_stream_ops none;
    vsock_set_ops(s, &none, NULL);
    return 0;
}

static int setup(void **state)
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

static int teardown(void **state)
{
    struct fix *x = *state;
    fake_fini(&x->f);
    virtio_dev_free(x->dev);
    free(x);
    return 0;
}

/* --- the guest's side ------------------------------------------------------------------------ */

static void give_rx(struct fix *x, unsigned n)
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
static bool take(struct fix *x, struct virtio_vsock_hdr *h, const uint8_t **data)
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
static struct virtio_vsock_hdr expect(struct fix *x, unsigned op)
{
    struct virtio_vsock_hdr h = {0};
    assert_true(take(x, &h, NULL));
    assert_int_equal(h.op, op);
    return h;
}

static void expect_none(struct fix *x)
{
    struct virtio_vsock_hdr h;
    assert_false(take(x, &h, NULL));
}

static struct virtio_vsock_hdr header(const struct fix *x, unsigned op, uint32_t guest_port,
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
static void queue_raw(struct fix *x, const struct virtio_vsock_hdr *h, const void *data,
                      uint32_t have)
{
    assert_true(have + 44 <= TX_BUF);
    memcpy(fake_ptr(&x->f, x->tx_area), h, sizeof(*h));
    if (data)
        memcpy(fake_ptr(&x->f, x->tx_area + 44), data, have);
    struct fake_buf b[] = {{x->tx_area, 44, false}, {x->tx_area + 44, have, false}};
    fake_add(&x->f, TX, b, have > 0 ? 2 : 1);
}

static void send_raw(struct fix *x, const struct virtio_vsock_hdr *h, const void *data,
                     uint32_t have)
{
    queue_raw(x, h, data, have);
    fake_kick(&x->f, TX);
    (void)fake_run(&x->f, 1000);
}

static void send_op(struct fix *x, unsigned op, uint32_t guest_port, uint32_t host_port)
{
    struct virtio_vsock_hdr h = header(x, op, guest_port, host_port, 0);
    send_raw(x, &h, NULL, 0);
}

static void send_data(struct fix *x, uint32_t guest_port, uint32_t host_port, const void *p,
                      uint32_t n)
{
    struct virtio_vsock_hdr h = header(x, OP_RW, guest_port, host_port, n);
    send_raw(x, &h, p, n);
}

static void send_shutdown(struct fix *x, uint32_t guest_port, uint32_t host_port, uint32_t flags)
{
    struct virtio_vsock_hdr h = header(x, OP_SHUTDOWN, guest_port, host_port, 0);
    h.flags = flags;
    send_raw(x, &h, NULL, 0);
}

/* A stream that the guest has opened from port 5000 + k. */
static struct owner *guest_stream(struct fix *x, unsigned k)
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
static struct owner *host_stream(struct fix *x, uint32_t *port)
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

static unsigned n_streams(struct fix *x)
{
    struct vsock_stats st;
    vsock_stats(x->dev, &st);
    return st.streams;
}

static uint64_t n_violations(struct fix *x)
{
    struct vsock_stats st;
    vsock_stats(x->dev, &st);
    return st.violations;
}

/* --- good guests ----------------------------------------------------------------------------- */

static void test_guest_connects_talks_and_closes(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    struct owner *o = guest_stream(x, 0);
    uint8_t sink[64] = {0};
    o->sink = sink;
    send_data(x, 5000, PORT, "hello", 5);
    assert_int_equal(o->got, 5);
    assert_memory_equal(sink, "hello", 5);
    assert_int_equal(vsock_send_buf(o->s, "answer", 6), 6);
    struct virtio_vsock_hdr h;
    const uint8_t *p;
    assert_true(take(x, &h, &p));
    assert_int_equal(h.op, OP_RW);
    assert_int_equal(h.len, 6);
    assert_int_equal(h.fwd_cnt, 5);
    assert_memory_equal(p, "answer", 6);
    assert_int_equal(vsock_guest_port(o->s), 5000);
    assert_int_equal(vsock_host_port(o->s), PORT);
    send_shutdown(x, 5000, PORT, 3);
    assert_int_equal(o->shutdown, 1);
    assert_int_equal(o->closed, 1);
    assert_false(o->reset);
    expect(x, OP_RST);
    expect_none(x);
    assert_int_equal(n_streams(x), 0);
    assert_true(x->f.interrupts[RX] > 0 && x->f.interrupts[TX] > 0);
}

static void test_nobody_listens(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    send_op(x, OP_REQUEST, 5000, 9999);
    struct virtio_vsock_hdr h = expect(x, OP_RST);
    assert_int_equal(h.src_port, 9999);
    assert_int_equal(h.dst_port, 5000);
    x->refuse = 1;
    send_op(x, OP_REQUEST, 5000, PORT);
    expect(x, OP_RST);
    expect_none(x);
    vsock_unlisten(x->dev, PORT);
    x->refuse = 0;
    send_op(x, OP_REQUEST, 5000, PORT);
    expect(x, OP_RST);
    assert_int_equal(n_streams(x), 0);
    assert_int_equal(vsock_listen(x->dev, 1, accept_any, NULL), 0);
    assert_int_equal(vsock_listen(x->dev, 1, accept_any, NULL), -EADDRINUSE);
}

static void test_host_connects(void **state)
{
    struct fix *x = *state;
    struct owner o = {.limit = SIZE_MAX};
    o.s = vsock_connect(x->dev, 7, &ops, &o); /* before there are buffers */
    assert_non_null(o.s);
    assert_int_equal(vsock_send_buf(o.s, "x", 1), 0);
    expect_none(x);
    give_rx(x, 8);
    struct virtio_vsock_hdr h = expect(x, OP_REQUEST);
    assert_int_equal(h.dst_port, 7);
    send_op(x, OP_RESPONSE, 7, h.src_port);
    assert_int_equal(o.connected, 1);
    assert_int_equal(o.writable, 1); /* the early send was short */
    assert_int_equal(vsock_send_buf(o.s, "x", 1), 1);
    expect(x, OP_RW);
    /* Refused. */
    struct owner p = {0};
    p.s = vsock_connect(x->dev, 8, &ops, &p);
    h = expect(x, OP_REQUEST);
    send_op(x, OP_RST, 8, h.src_port);
    assert_int_equal(p.closed, 1);
    assert_true(p.reset);
    assert_int_equal(n_streams(x), 1);
    vsock_abort(o.s);
    expect(x, OP_RST);
    assert_int_equal(o.closed, 0); /* the owner knows */
}

static void test_half_close_both_ways(void **state)
{
    struct fix *x = *state;
    give_rx(x, 16);
    uint32_t port;
    struct owner *o = host_stream(x, &port);
    vsock_shutdown(o->s, VSOCK_SHUT_SEND);
    struct virtio_vsock_hdr h = expect(x, OP_SHUTDOWN);
    assert_int_equal(h.flags, VSOCK_SHUT_SEND);
    assert_int_equal(vsock_send_buf(o->s, "no", 2), 0);
    send_data(x, 7, port, "late", 4); /* the other way still works */
    assert_int_equal(o->got, 4);
    send_shutdown(x, 7, port, VSOCK_SHUT_SEND);
    assert_int_equal(o->shutdown, 1);
    assert_int_equal(o->closed, 0);
    vsock_close(o->s);
    h = expect(x, OP_SHUTDOWN);
    assert_int_equal(h.flags, 3);
    assert_int_equal(n_streams(x), 1); /* until the guest agrees */
    send_op(x, OP_RST, 7, port);
    assert_int_equal(n_streams(x), 0);
    expect_none(x);
}

static void test_a_guest_that_reads_no_more(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    struct owner *o = guest_stream(x, 0);
    send_shutdown(x, 5000, PORT, VSOCK_SHUT_RECV);
    assert_int_equal(o->shutdown, 0);
    assert_int_equal(vsock_send_buf(o->s, "abc", 3), 3); /* taken and dropped */
    expect_none(x);
    send_data(x, 5000, PORT, "abc", 3);
    assert_int_equal(o->got, 3);
}

static void test_back_pressure_from_the_owner(void **state)
{
    struct fix *x = *state;
    give_rx(x, 32);
    struct owner *o = guest_stream(x, 0);
    uint8_t *sink = calloc(1, VSOCK_CREDIT), chunk[4096];
    o->sink = sink;
    o->limit = 1000;
    for (unsigned i = 0; i < VSOCK_CREDIT / 4096; i++) {
        memset(chunk, (int)i + 1, sizeof(chunk));
        send_data(x, 5000, PORT, chunk, sizeof(chunk));
    }
    assert_int_equal(o->got, 1000);
    assert_int_equal(vsock_held(o->s), VSOCK_CREDIT - 1000);
    expect_none(x); /* no credit for what nobody took */
    send_shutdown(x, 5000, PORT, 3);
    assert_int_equal(o->shutdown, 0); /* not before its data */
    o->limit = 5000;
    vsock_resume(o->s);
    assert_int_equal(o->got, 6000);
    assert_int_equal(o->shutdown, 0);
    o->limit = SIZE_MAX;
    vsock_resume(o->s);
    assert_int_equal(o->got, VSOCK_CREDIT);
    assert_int_equal(o->shutdown, 1);
    assert_int_equal(o->closed, 1);
    for (unsigned i = 0; i < VSOCK_CREDIT; i++)
        assert_int_equal(sink[i], (uint8_t)(i / 4096 + 1));
    free(sink);
}

static void test_credit_comes_back(void **state)
{
    struct fix *x = *state;
    give_rx(x, 32);
    struct owner *o = guest_stream(x, 0);
    static const uint8_t chunk[4096];
    for (unsigned i = 0; i < VSOCK_CREDIT / 4 / 4096; i++) {
        expect_none(x);
        send_data(x, 5000, PORT, chunk, sizeof(chunk));
    }
    struct virtio_vsock_hdr h = expect(x, OP_CREDIT_UPDATE);
    assert_int_equal(h.fwd_cnt, VSOCK_CREDIT / 4);
    send_op(x, OP_CREDIT_REQUEST, 5000, PORT);
    expect(x, OP_CREDIT_UPDATE);
    o->limit = 0;
    for (unsigned i = 0; i < VSOCK_CREDIT / 4096; i++)
        send_data(x, 5000, PORT, chunk, sizeof(chunk));
    expect_none(x);
    o->limit = SIZE_MAX;
    vsock_resume(o->s); /* outside any kick */
    h = expect(x, OP_CREDIT_UPDATE);
    assert_int_equal(h.fwd_cnt, VSOCK_CREDIT / 4 * 5);
}

static void test_back_pressure_from_the_guest(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    x->alloc = 100;
    struct owner *o = guest_stream(x, 0);
    char data[300] = {0};
    assert_int_equal(vsock_send_buf(o->s, data, 300), 100);
    assert_int_equal(expect(x, OP_RW).len, 100);
    assert_int_equal(vsock_send_buf(o->s, data, 200), 0);
    x->fwd = 30;
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(o->writable, 1);
    assert_int_equal(vsock_send_buf(o->s, data, 200), 30);
    assert_int_equal(expect(x, OP_RW).len, 30);
    /* Credit, but no buffers. */
    x->alloc = 1 << 20;
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(o->writable, 2);
    char *big = calloc(1, 100000);
    size_t sent = vsock_send_buf(o->s, big, 100000);
    assert_int_equal(sent, 5 * (RX_BUF - 44)); /* what 8 buffers less 3 hold */
    assert_int_equal(o->writable, 2);
    o->to_send = (uint8_t *)big;
    o->left = 100000 - sent;
    give_rx(x, 2);
    assert_int_equal(o->writable, 3);
    assert_int_equal(o->left, 100000 - sent - 2 * (RX_BUF - 44));
    free(big);
}

static void test_control_goes_before_data(void **state)
{
    struct fix *x = *state;
    struct virtio_vsock_hdr h = header(x, OP_REQUEST, 5000, PORT, 0);
    send_raw(x, &h, NULL, 0); /* no buffers for the response yet */
    struct owner *o = &x->owner[0];
    assert_non_null(o->s);
    assert_int_equal(vsock_send_buf(o->s, "hi", 2), 0);
    o->to_send = (const uint8_t *)"hi";
    o->left = 2;
    give_rx(x, 8);
    expect(x, OP_RESPONSE);
    expect(x, OP_RW);
    assert_int_equal(o->left, 0);
}

static void test_owner_ends_the_stream_inside_callbacks(void **state)
{
    struct fix *x = *state;
    give_rx(x, 32);
    struct owner *o = guest_stream(x, 0);
    o->abort_in_data = true;
    send_data(x, 5000, PORT, "x", 1);
    expect(x, OP_RST);
    assert_int_equal(o->closed, 0);
    assert_int_equal(n_streams(x), 0);
    o = guest_stream(x, 1);
    o->close_in_data = true;
    send_data(x, 5001, PORT, "x", 1);
    expect(x, OP_SHUTDOWN);
    send_data(x, 5001, PORT, "x", 1); /* nobody reads: reset */
    expect(x, OP_RST);
    assert_int_equal(n_streams(x), 0);
    o = guest_stream(x, 2);
    o->limit = 0;
    o->resume_in_data = true; /* takes nothing first, all at the second offer */
    send_data(x, 5002, PORT, "abcdef", 6);
    assert_int_equal(o->got, 6);
    assert_int_equal(vsock_held(o->s), 0);
}

static void test_closing_after_the_guest_has_closed_is_a_reset(void **state)
{
    struct fix *x = *state;
    give_rx(x, 16);
    struct owner *o = guest_stream(x, 0);
    o->close_in_shutdown = true;
    send_shutdown(x, 5000, PORT, 3);
    expect(x, OP_RST); /* what the guest's close() waits for, seconds long */
    expect_none(x);
    assert_int_equal(o->shutdown, 1);
    assert_int_equal(o->closed, 0);
    assert_int_equal(n_streams(x), 0);
    o = guest_stream(x, 1);
    o->close_in_shutdown = true;
    send_shutdown(x, 5001, PORT, VSOCK_SHUT_SEND); /* it still reads: in order, then */
    assert_int_equal(expect(x, OP_SHUTDOWN).flags, 3);
    send_shutdown(x, 5001, PORT, 3);
    expect(x, OP_RST);
    assert_int_equal(n_streams(x), 0);
}

static void test_reset_of_the_device_ends_all_streams(void **state)
{
    struct fix *x = *state;
    give_rx(x, 16);
    struct owner *a = guest_stream(x, 0);
    uint32_t port;
    struct owner *b = host_stream(x, &port);
    fake_detach(&x->f);
    assert_int_equal(a->closed, 1);
    assert_int_equal(b->closed, 1);
    assert_true(a->reset && b->reset);
    assert_int_equal(n_streams(x), 0);
}

static uint32_t rnd(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

/* Random sizes, buffers, credit and appetite; every byte must come through in order. */
static void test_bytes_arrive_in_order_both_ways(void **state)
{
    struct fix *x = *state;
    enum { TOTAL = 300000 };
    uint8_t *src = malloc(TOTAL), *up = calloc(1, TOTAL), *down = calloc(1, TOTAL);
    uint32_t seed = 42;
    for (unsigned i = 0; i < TOTAL; i++)
        src[i] = (uint8_t)rnd(&seed);
    give_rx(x, 1);
    x->alloc = 5000;
    struct owner *o = guest_stream(x, 0);
    o->sink = up;
    o->limit = 0;
    o->to_send = src;
    o->left = TOTAL;
    on_writable(o->s, o);
    uint32_t sent = 0, fwd_cnt = 0;
    size_t got = 0;
    for (unsigned turn = 0; turn < 200000 && (got < TOTAL || o->got < TOTAL); turn++) {
        uint32_t credit = VSOCK_CREDIT - (sent - fwd_cnt), n = rnd(&seed) % 7000 + 1;
        n = n < credit ? n : credit;
        n = n < TOTAL - sent ? n : TOTAL - sent;
        if (n > 0 && rnd(&seed) % 2)
            send_data(x, 5000, PORT, src + sent, n), sent += n;
        if (rnd(&seed) % 3 == 0) {
            o->limit = rnd(&seed) % 9000;
            vsock_resume(o->s);
        }
        struct virtio_vsock_hdr h;
        const uint8_t *p;
        while (take(x, &h, &p)) {
            fwd_cnt = h.fwd_cnt;
            assert_true(got + h.len <= TOTAL);
            memcpy(down + got, p, h.len);
            got += h.len;
        }
        x->fwd = (uint32_t)got;
        if (rnd(&seed) % 4 == 0)
            send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
        if (rnd(&seed) % 2 && (uint16_t)(x->f.q[RX].avail_idx - x->f.q[RX].last_used) < QSIZE / 2)
            give_rx(x, rnd(&seed) % 3);
        if (sent == TOTAL)
            send_op(x, OP_CREDIT_REQUEST, 5000, PORT);
    }
    assert_int_equal(got, TOTAL);
    assert_int_equal(o->got, TOTAL);
    assert_memory_equal(up, src, TOTAL);
    assert_memory_equal(down, src, TOTAL);
    assert_int_equal(n_violations(x), 0);
    free(src);
    free(up);
    free(down);
}

/* --- bad guests ------------------------------------------------------------------------------ */

static void expect_violation(struct fix *x, const struct owner *o)
{
    expect(x, OP_RST);
    assert_int_equal(o->closed, 1);
    assert_true(o->reset);
    assert_int_equal(n_streams(x), 0);
    assert_null(x->f.broken);
}

static void test_h18_length_beyond_payload(void **state)
{
    struct fix *x = *state;
    give_rx(x, 32);
    const uint32_t lies[] = {11, 4096, 0x7fffffff, 0xffffffff, 0xffffffff - 43};
    for (unsigned i = 0; i < 5; i++) {
        struct owner *o = guest_stream(x, i);
        struct virtio_vsock_hdr h = header(x, OP_RW, 5000 + i, PORT, lies[i]);
        send_raw(x, &h, "0123456789", 10);
        assert_int_equal(o->got, 0);
        expect_violation(x, o);
    }
    assert_int_equal(n_violations(x), 5);
    /* Less than the payload is fine: the rest is ignored. */
    struct owner *o = guest_stream(x, 9);
    struct virtio_vsock_hdr h = header(x, OP_RW, 5009, PORT, 3);
    send_raw(x, &h, "0123456789", 10);
    assert_int_equal(o->got, 3);
}

static void test_h18_more_than_its_credit(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    struct owner *o = guest_stream(x, 0);
    o->limit = 0;
    static const uint8_t chunk[4096];
    for (unsigned i = 0; i < VSOCK_CREDIT / 4096; i++)
        send_data(x, 5000, PORT, chunk, sizeof(chunk));
    assert_int_equal(vsock_held(o->s), VSOCK_CREDIT);
    assert_int_equal(o->closed, 0);
    send_data(x, 5000, PORT, chunk, 1);
    expect_violation(x, o);
    /* In a single packet, to an owner that would take it all: the same memory over and over. */
    o = guest_stream(x, 1);
    struct virtio_vsock_hdr h = header(x, OP_RW, 5001, PORT, VSOCK_CREDIT + 1);
    memcpy(fake_ptr(&x->f, x->tx_area), &h, sizeof(h));
    struct fake_buf b[QSIZE - 1] = {{x->tx_area, 44, false}};
    for (unsigned i = 1; i < QSIZE - 1; i++)
        b[i] = (struct fake_buf){x->tx_area, TX_BUF, false};
    fake_add(&x->f, TX, b, QSIZE - 1);
    fake_kick(&x->f, TX);
    assert_int_equal(o->got, 0);
    expect_violation(x, o);
}

static void test_h18_credit_lies(void **state)
{
    struct fix *x = *state;
    give_rx(x, 16);
    struct owner *o = guest_stream(x, 0);
    char data[1000] = {0};
    assert_int_equal(vsock_send_buf(o->s, data, 1000), 1000);
    expect(x, OP_RW);
    x->fwd = 1001; /* acknowledges more than it was sent */
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(vsock_send_buf(o->s, data, 1000), 0);
    x->fwd = 0x80000000;
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(vsock_send_buf(o->s, data, 1000), 0);
    x->fwd = 0;
    x->alloc = 10; /* its buffer shrinks below what is in flight */
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(vsock_send_buf(o->s, data, 1000), 0);
    x->alloc = 0xffffffff;
    send_op(x, OP_CREDIT_UPDATE, 5000, PORT);
    assert_int_equal(vsock_send_buf(o->s, data, 1000), 1000);
    assert_int_equal(o->closed, 0);
}

static void test_h18_unknown_op_type_and_cid(void **state)
{
    struct fix *x = *state;
    give_rx(x, 16);
    struct owner *o = guest_stream(x, 0);
    struct virtio_vsock_hdr h = header(x, 99, 5000, PORT, 0);
    send_raw(x, &h, NULL, 0);
    expect_violation(x, o);
    h = header(x, 0, 5000, PORT, 0); /* without a stream */
    send_raw(x, &h, NULL, 0);
    expect(x, OP_RST);
    h = header(x, OP_REQUEST, 5000, PORT, 0);
    h.type = 77;
    send_raw(x, &h, NULL, 0);
    assert_int_equal(expect(x, OP_RST).type, 77);
    const uint64_t cids[] = {0, 1, 3, 4, UINT32_MAX, UINT64_MAX, 1ULL << 32 | 2};
    for (unsigned i = 0; i < 7; i++) {
        h = header(x, OP_REQUEST, 5000, PORT, 0);
        h.dst_cid = cids[i];
        send_raw(x, &h, NULL, 0);
        h = header(x, OP_REQUEST, 5000, PORT, 0);
        h.src_cid = cids[i] == 3 ? 2 : cids[i];
        send_raw(x, &h, NULL, 0);
    }
    expect_none(x);
    assert_int_equal(n_streams(x), 0);
    struct vsock_stats st;
    vsock_stats(x->dev, &st);
    assert_int_equal(st.dropped, 15);
}

static void test_h18_short_packets(void **state)
{
    struct fix *x = *state;
    give_rx(x, 4);
    for (uint32_t len = 1; len < 44; len++) {
        struct fake_buf b = {x->tx_area, len, false};
        fake_add(&x->f, TX, &b, 1);
        fake_kick(&x->f, TX);
    }
    struct fake_buf in = {x->tx_area, 100, true}; /* and one for us to write into */
    fake_add(&x->f, TX, &in, 1);
    fake_kick(&x->f, TX);
    assert_null(x->f.broken);
    assert_int_equal(fake_used_idx(&x->f, TX), 44);
    expect_none(x);
}

static void test_h18_packets_out_of_order(void **state)
{
    struct fix *x = *state;
    give_rx(x, 32);
    struct owner *o = guest_stream(x, 0);
    send_op(x, OP_REQUEST, 5000, PORT); /* twice */
    expect_violation(x, o);
    o = guest_stream(x, 1);
    send_op(x, OP_RESPONSE, 5001, PORT);
    expect_violation(x, o);
    o = guest_stream(x, 2);
    send_shutdown(x, 5002, PORT, VSOCK_SHUT_SEND);
    send_data(x, 5002, PORT, "x", 1); /* after it said it would not */
    expect_violation(x, o);
    struct owner p = {.limit = SIZE_MAX};
    p.s = vsock_connect(x->dev, 7, &ops, &p);
    struct virtio_vsock_hdr h = expect(x, OP_REQUEST);
    send_data(x, 7, h.src_port, "early", 5);
    expect_violation(x, &p);
    assert_int_equal(p.connected, 0);
    send_data(x, 6000, PORT, "nobody", 6);
    expect(x, OP_RST);
    send_shutdown(x, 6000, PORT, 3);
    expect(x, OP_RST);
    assert_int_equal(n_violations(x), 4);
}

/* Keeps the guest's receive queue full and throws away what comes. */
static void churn_rx(struct fix *x, unsigned *rst)
{
    struct virtio_vsock_hdr h;
    while (take(x, &h, NULL))
        *rst += h.op == OP_RST;
    give_rx(x, QSIZE - (unsigned)(uint16_t)(x->f.q[RX].avail_idx - x->f.q[RX].last_used));
}

static void test_h18_100k_connects(void **state)
{
    struct fix *x = *state;
    unsigned rst = 0;
    assert_int_equal(vsock_listen(x->dev, 2000, accept_any, NULL), 0);
    for (uint32_t i = 0; i < 100000; i++) {
        if (i % 8 == 0)
            churn_rx(x, &rst);
        send_op(x, OP_REQUEST, i, 2000);
    }
    churn_rx(x, &rst);
    churn_rx(x, &rst);
    assert_int_equal(n_streams(x), VSOCK_STREAMS_MAX - VSOCK_HOST_RESERVE);
    assert_int_equal(rst, 100000 - (VSOCK_STREAMS_MAX - VSOCK_HOST_RESERVE));
    /* We still get through, up to our own limit. */
    uint32_t port;
    struct owner *o = host_stream(x, &port);
    send_data(x, 7, port, "x", 1);
    assert_int_equal(o->got, 1);
    static const struct vsock_stream_ops none;
    for (unsigned i = 1; i < VSOCK_HOST_RESERVE; i++)
        assert_non_null(vsock_connect(x->dev, 9, &none, NULL));
    errno = 0;
    assert_null(vsock_connect(x->dev, 9, &none, NULL));
    assert_int_equal(errno, EMFILE);
    /* And the guest too, once it lets go of one. */
    send_op(x, OP_RST, 0, 2000);
    churn_rx(x, &rst);
    send_op(x, OP_REQUEST, 200000, 2000);
    assert_int_equal(n_streams(x), VSOCK_STREAMS_MAX);
}

static void test_h18_reset_flood(void **state)
{
    struct fix *x = *state;
    give_rx(x, 8);
    for (uint32_t i = 0; i < 100000; i++)
        send_op(x, OP_RST, i, PORT);
    expect_none(x); /* a reset is never answered */
    struct owner *o = guest_stream(x, 0);
    send_op(x, OP_RST, 5000, PORT);
    assert_int_equal(o->closed, 1);
    assert_true(o->reset);
    send_op(x, OP_RST, 5000, PORT);
    expect_none(x);
}

static void test_h18_a_guest_that_never_gives_buffers(void **state)
{
    struct fix *x = *state;
    /* Each of these wants an answer; after so many the device stops listening, and holds no more.*/
    unsigned sent = 0;
    for (; sent < 10000; sent++) {
        uint16_t before = fake_used_idx(&x->f, TX);
        send_op(x, OP_REQUEST, sent, 9999);
        if (fake_used_idx(&x->f, TX) == before)
            break;
    }
    assert_in_range(sent, 1, 1000);
    assert_null(x->f.broken);
    /* Buffers come: all answers go out, in order, and the last packet is looked at after all. */
    uint32_t next = 0;
    for (unsigned i = 0; i < 1000 && next <= sent; i++) {
        struct virtio_vsock_hdr h;
        give_rx(x, 16);
        while (take(x, &h, NULL)) {
            assert_int_equal(h.op, OP_RST);
            assert_int_equal(h.dst_port, next++);
        }
    }
    assert_int_equal(next, sent + 1);
}

static void test_h18_never_reads(void **state)
{
    struct fix *x = *state;
    give_rx(x, 4);
    struct owner *o = guest_stream(x, 0);
    char data[4096] = {0};
    size_t sent = 0, n;
    while ((n = vsock_send_buf(o->s, data, sizeof(data))) > 0)
        sent += n;
    assert_true(sent <= 4 * RX_BUF); /* nothing is queued besides */
    assert_int_equal(o->writable, 0);
    vsock_abort(o->s);
    assert_int_equal(n_streams(x), 1); /* its reset waits for a buffer, no more */
    give_rx(x, 1);
    assert_int_equal(n_streams(x), 0);
}

static void test_h18_closed_streams_give_way(void **state)
{
    struct fix *x = *state;
    unsigned rst = 0;
    /* The guest never confirms that streams are closed. */
    for (uint32_t i = 0; i < 3 * VSOCK_STREAMS_MAX; i++) {
        churn_rx(x, &rst);
        struct owner *o = &x->owner[x->n_owners % 4];
        send_op(x, OP_REQUEST, i, PORT);
        assert_non_null(o->s);
        vsock_close(o->s);
        o->s = NULL;
    }
    assert_true(n_streams(x) <= VSOCK_STREAMS_MAX - VSOCK_HOST_RESERVE);
}

static void test_h18_held_bytes_are_bounded_over_all_streams(void **state)
{
    struct fix *x = *state;
    static uint8_t chunk[4096];
    static struct owner many[VSOCK_STREAMS_MAX];
    unsigned open = 0, closed = 0, rst = 0;
    memset(many, 0, sizeof(many));
    for (uint32_t i = 0; i < VSOCK_HELD_MAX / VSOCK_CREDIT + 4; i++) {
        churn_rx(x, &rst);
        send_op(x, OP_REQUEST, i, PORT);
        struct owner *o = &many[open++];
        *o = *(&x->owner[(x->n_owners - 1) % 4]);
        o->limit = 0;
        vsock_set_ops(o->s, &ops, o);
        for (unsigned k = 0; k < VSOCK_CREDIT / 4096; k++)
            send_data(x, i, PORT, chunk, sizeof(chunk));
    }
    size_t held = 0;
    for (unsigned i = 0; i < open; i++) {
        closed += many[i].closed;
        held += many[i].closed ? 0 : vsock_held(many[i].s);
    }
    assert_int_equal(closed, 4);
    assert_int_equal(held, VSOCK_HELD_MAX);
}

static void test_tiny_receive_buffers_break_the_device(void **state)
{
    struct fix *x = *state;
    send_op(x, OP_REQUEST, 1, 9999);
    struct fake_buf b = {x->rx_area, 43, true};
    fake_add(&x->f, RX, &b, 1);
    fake_kick(&x->f, RX);
    assert_string_equal(x->f.broken, "vsock: receive buffer is too small");
    errno = 0;
    struct owner o = {0};
    o.s = vsock_connect(x->dev, 1, &ops, &o); /* harmless */
    assert_non_null(o.s);
    vsock_abort(o.s);
}

static void test_the_event_queue_is_ignored(void **state)
{
    struct fix *x = *state;
    struct fake_buf b = {x->rx_area, 8, true};
    for (unsigned i = 0; i < 100; i++) {
        fake_add(&x->f, EVENT, &b, 1);
        fake_kick(&x->f, EVENT);
    }
    fake_publish(&x->f, EVENT, 9999);
    fake_kick(&x->f, EVENT);
    assert_null(x->f.broken);
    assert_int_equal(fake_used_idx(&x->f, EVENT), 0);
}

/* A driver that adds a packet for each one that is served: a turn must end all the same. */
static size_t refill_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    struct fix *x = ctx;
    (void)s;
    (void)p;
    struct virtio_vsock_hdr h = header(x, OP_RW, 5000, PORT, 1);
    queue_raw(x, &h, NULL, 1);
    x->owner[0].got += n;
    return n;
}

static void test_h13_a_turn_is_bounded(void **state)
{
    struct fix *x = *state;
    static const struct vsock_stream_ops refill = {.data = refill_data};
    give_rx(x, 8);
    struct owner *o = guest_stream(x, 0);
    vsock_set_ops(o->s, &refill, x);
    struct virtio_vsock_hdr h = header(x, OP_RW, 5000, PORT, 1);
    queue_raw(x, &h, "x", 1);
    fake_kick(&x->f, TX);
    assert_in_range(o->got, 100, 1000);
    assert_true(x->f.later[TX]); /* and goes on in the next */
    size_t before = o->got;
    assert_int_equal(fake_run(&x->f, 1), 1);
    assert_true(o->got > before);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_guest_connects_talks_and_closes),
        T(test_nobody_listens),
        T(test_host_connects),
        T(test_half_close_both_ways),
        T(test_a_guest_that_reads_no_more),
        T(test_back_pressure_from_the_owner),
        T(test_credit_comes_back),
        T(test_back_pressure_from_the_guest),
        T(test_control_goes_before_data),
        T(test_owner_ends_the_stream_inside_callbacks),
        T(test_closing_after_the_guest_has_closed_is_a_reset),
        T(test_reset_of_the_device_ends_all_streams),
        T(test_bytes_arrive_in_order_both_ways),
        T(test_h13_a_turn_is_bounded),
        T(test_h18_length_beyond_payload),
        T(test_h18_more_than_its_credit),
        T(test_h18_credit_lies),
        T(test_h18_unknown_op_type_and_cid),
        T(test_h18_short_packets),
        T(test_h18_packets_out_of_order),
        T(test_h18_100k_connects),
        T(test_h18_reset_flood),
        T(test_h18_a_guest_that_never_gives_buffers),
        T(test_h18_never_reads),
        T(test_h18_closed_streams_give_way),
        T(test_h18_held_bytes_are_bounded_over_all_streams),
        T(test_tiny_receive_buffers_break_the_device),
        T(test_the_event_queue_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
