/* The socket device against a guest that lies, floods, and never reads. */
#include "fake_vsock.h"

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

/* A driver that adds a packet for each one that is served: a turn must still end. */
static size_t refill_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    struct fix *x = ctx;
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
