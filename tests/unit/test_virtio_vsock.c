/* The socket device with a good guest: streams both ways, back-pressure, every way to end. */
#include "fake_vsock.h"

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
    assert_int_equal(h.dst_port, 5000);
    assert_int_equal(h.src_port, PORT);
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
    expect_none(x); /* no credit for what was not taken */
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
    send_data(x, 5001, PORT, "x", 1); /* not read: reset */
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
