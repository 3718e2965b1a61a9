/* Limits on bytes and packets: the buckets, with a clock of the test's own; and flows of the stack
 * that share them. */
#include <sys/socket.h>

#include "fake_link.h"
#include "net/rate.h"
#include "unit.h"

#define S(n) ((uint64_t)(n)*1000000000ULL)
#define MS(n) ((uint64_t)(n)*1000000ULL)

/* --- buckets --------------------------------------------------------------------------------- */

static void test_bucket_fills_with_time(void **state)
{
    struct bucket b;
    bucket_init(&b, 1000, S(1), 1000, 0, S(10));
    assert_int_equal(bucket_level(&b, S(10)), 1000);
    bucket_take(&b, 1000);
    assert_int_equal(bucket_level(&b, S(10)), 0);
    assert_int_equal(bucket_wait_ns(&b, 1), MS(1));
    assert_int_equal(bucket_wait_ns(&b, 500), MS(500));
    assert_int_equal(bucket_wait_ns(&b, 5000), S(1)); /* never more than it holds */
    assert_int_equal(bucket_level(&b, S(10) + MS(250)), 250);
    assert_int_equal(bucket_level(&b, S(100)), 1000);
    assert_int_equal(bucket_wait_ns(&b, 1000), 0);
    assert_int_equal(bucket_level(&b, S(50)), 1000); /* a clock that goes back changes nothing */
}

static void test_bucket_loses_no_fractions(void **state)
{
    struct bucket b;
    uint64_t now = 7, sum = 0;
    bucket_init(&b, 3, S(1), 3, 0, now);
    bucket_take(&b, 3);
    for (unsigned i = 0; i < 10000; i++) { /* a token takes 333,333,333.3 ns */
        now += MS(1);
        uint64_t k = bucket_level(&b, now);
        bucket_take(&b, k);
        sum += k;
    }
    assert_in_range(sum, 29, 30);
}

static void test_bucket_debt_is_bounded(void **state)
{
    struct bucket b;
    bucket_init(&b, 100, S(1), 100, 0, 0);
    bucket_take(&b, 150); /* one packet that was larger */
    assert_int_equal(bucket_level(&b, 0), 0);
    assert_int_equal(bucket_wait_ns(&b, 1), MS(510));
    bucket_take(&b, UINT64_MAX);
    assert_int_equal(bucket_wait_ns(&b, 100), S(2));
    assert_int_equal(bucket_level(&b, S(2)), 100);
}

static void test_bucket_burst_is_spent_once(void **state)
{
    struct bucket b;
    bucket_init(&b, 100, S(1), 100, 900, 0);
    assert_int_equal(bucket_level(&b, S(5)), 1000);
    bucket_take(&b, 950);
    assert_int_equal(bucket_level(&b, S(500)), 100);
}

static void test_bucket_extremes(void **state)
{
    struct bucket b;
    bucket_init(&b, UINT64_MAX, 1, UINT64_MAX, UINT64_MAX, 0);
    assert_int_equal(bucket_level(&b, UINT64_MAX), 2 * BUCKET_MAX);
    bucket_take(&b, UINT64_MAX);
    assert_int_equal(bucket_level(&b, UINT64_MAX), 0);
    bucket_init(&b, 1, UINT64_MAX, BUCKET_MAX, 0, 0);
    bucket_take(&b, UINT64_MAX);
    assert_int_equal(bucket_wait_ns(&b, UINT64_MAX), UINT64_MAX / 2);
    struct bucket none = {0};
    assert_int_equal(bucket_level(&none, 5), UINT64_MAX);
    bucket_take(&none, 5);
    assert_int_equal(bucket_wait_ns(&none, 5), 0);
}

/* --- grants ---------------------------------------------------------------------------------- */

static void test_grants(void **state)
{
    struct rate r;
    struct rate_limits l = {.bytes = {.amount = 16000, .period_ms = 1000}};
    rate_init(&r, &l, 0);
    assert_int_equal(rate_grant(&r, 100000, 1460, 0), 2000); /* an eighth at once */
    rate_charge(&r, 15000, 11);
    assert_int_equal(rate_grant(&r, 100000, 1460, 0), 0); /* a thousand is less than a packet */
    assert_int_equal(rate_grant(&r, 900, 1460, 0), 900);  /* but enough for a small one */
    assert_int_equal(rate_wait_ns(&r), MS(500) / 16);     /* for 1500 */
    assert_int_equal(rate_grant(&r, 100000, 1460, MS(30)), 1480);
}

static void test_grants_of_packets(void **state)
{
    struct rate r;
    struct rate_limits l = {.packets = {.amount = 10, .period_ms = 1000}};
    rate_init(&r, &l, 0);
    assert_int_equal(rate_grant(&r, 100000, 1000, 0), 10000);
    rate_charge(&r, 10000, 10);
    assert_int_equal(rate_grant(&r, 1, 1000, 0), 0);
    assert_int_equal(rate_wait_ns(&r), MS(100));
    assert_int_equal(rate_grant(&r, 5000, 1000, MS(250)), 2000);
}

static void test_grants_below_a_packet(void **state)
{
    struct rate r;
    struct rate_limits l = {.bytes = {.amount = 100, .period_ms = 1000}};
    rate_init(&r, &l, 0);
    assert_int_equal(rate_grant(&r, 5000, 1460, 0), 100);
    rate_charge(&r, 100, 1);
    assert_int_equal(rate_grant(&r, 5000, 1460, MS(999)), 0);
    assert_int_equal(rate_grant(&r, 5000, 1460, S(1)), 100);
    struct rate none = {0};
    assert_int_equal(rate_grant(&none, 5000, 1460, 0), 5000);
    rate_charge(&none, 5000, 4);
}

/* --- flows ----------------------------------------------------------------------------------- */

enum { FLOWS = 3, ISS = 1000, PORT = 40000, FOREVER_MS = RATE_PERIOD_MAX_S * 1000 };

struct end {
    int host;
    uint32_t seq, ack;
    size_t got; /* bytes that the guest, or the host, has received */
};

struct fix {
    struct loop loop;
    struct fake_link fl;
    struct net *net;
    struct net_config cfg;
    struct net_addr peer;
    struct end end[FLOWS];
    int udp_peer;
};

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    struct fix *x = ctx;
    int pair[2];
    if (id->proto == PROTO_UDP) {
        struct sockaddr_storage a;
        socklen_t alen = sizeof(a);
        assert_int_equal(getsockname(x->udp_peer, (struct sockaddr *)&a, &alen), 0);
        assert_true(end_from_sockaddr(&a, &v->to));
        v->action = NET_ALLOW;
        return;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    v->action = NET_LOCAL;
    v->fd = pair[0];
    x->end[id->guest.port - PORT].host = pair[1];
}

static const struct net_hooks hooks = {.verdict = on_verdict};

static void seg(struct fix *x, unsigned i, uint8_t flags, const void *data, size_t len)
{
    struct end *e = &x->end[i];
    struct fl_seg s = {.sport = (uint16_t)(PORT + i),
                       .dport = 80,
                       .seq = e->seq,
                       .ack = e->ack,
                       .flags = flags,
                       .window = 30000,
                       .data = data,
                       .len = len,
                       .options = flags == SEG_SYN};
    fl_tcp(&x->fl, &x->cfg.guest4, &x->peer, &s);
    fl_input_end(&x->fl);
}

/* The guest takes what there is, and acknowledges; how many bytes of payload. */
static size_t guest_takes(struct fix *x)
{
    size_t total = 0;
    struct fl_frame *f;
    bool ack[FLOWS] = {0};
    while ((f = fl_next(&x->fl))) {
        const uint8_t *ip = f->p + LINK_ETH, *t = ip + 20;
        size_t len = be16(ip + 2) - 20U - (size_t)(t[12] >> 4) * 4;
        unsigned i = be16(t + 2) - PORT;
        if (ip[9] == PROTO_TCP) {
            assert_in_range(i, 0, FLOWS - 1);
            x->end[i].ack = be32(t + 4) + (uint32_t)len + !!(t[13] & SEG_SYN);
            x->end[i].got += len;
            ack[i] = len > 0;
        } else {
            len = be16(t + 4) - 8U;
        }
        total += len;
        fl_done(&x->fl);
    }
    for (unsigned i = 0; i < FLOWS; i++)
        if (ack[i])
            seg(x, i, SEG_ACK, NULL, 0);
    return total;
}

static void open_flow(struct fix *x, unsigned i)
{
    x->end[i].seq = ISS;
    seg(x, i, SEG_SYN, NULL, 0);
    (void)guest_takes(x);
    x->end[i].seq++;
    seg(x, i, SEG_ACK, NULL, 0);
    assert_true(x->end[i].host >= 0);
}

static struct fix *start(void **state, const struct rate_limits *out, const struct rate_limits *in)
{
    struct fix *x = calloc(1, sizeof(*x));
    assert_non_null(x);
    for (unsigned i = 0; i < FLOWS; i++)
        x->end[i].host = -1;
    fl_init(&x->fl, LINK_CSUM | LINK_TSO4 | LINK_ANY_SIZE);
    assert_int_equal(loop_init(&x->loop), 0);
    x->cfg = fl_config();
    if (out)
        x->cfg.egress = *out;
    if (in)
        x->cfg.ingress = *in;
    assert_int_equal(net_new(&x->net, &x->loop, &x->fl.link, &x->cfg, &hooks, x), 0);
    assert_int_equal(addr_parse("93.184.216.34", &x->peer), 0);
    struct sockaddr_storage a;
    struct net_end any = {0};
    assert_int_equal(addr_parse("127.0.0.1", &any.addr), 0);
    socklen_t alen = end_to_sockaddr(&any, &a);
    x->udp_peer = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(x->udp_peer, (struct sockaddr *)&a, alen), 0);
    *state = x;
    return x;
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    fl_drop_all(&x->fl);
    net_free(x->net);
    for (unsigned i = 0; i < FLOWS; i++)
        close_fd(&x->end[i].host);
    close_fd(&x->udp_peer);
    loop_fini(&x->loop);
    free(x);
    return 0;
}

static void turn(struct fix *x, int ms)
{
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(loop_turn(&x->loop, i == 0 ? ms : 0), 0);
}

/* What has come out at the host's end of a flow. */
static size_t host_takes(struct fix *x, unsigned i)
{
    static uint8_t buf[65536];
    size_t total = 0;
    for (ssize_t k; (k = recv(x->end[i].host, buf, sizeof(buf), MSG_DONTWAIT)) > 0;)
        total += (size_t)k;
    x->end[i].got += total;
    return total;
}

static const struct rate_limits once = {.bytes = {.amount = 20000, .period_ms = FOREVER_MS}};

static void test_tcp_to_guest_stops_at_the_limit(void **state)
{
    struct fix *x = start(state, NULL, &once);
    static uint8_t data[50000];
    open_flow(x, 0);
    assert_int_equal(send(x->end[0].host, data, sizeof(data), 0), sizeof(data));
    size_t total = 0;
    for (unsigned i = 0; i < 20; i++) {
        turn(x, 0);
        total += guest_takes(x);
    }
    assert_in_range(total, 20000 - 1460, 20000);
    /* It still acknowledges what the guest sends, and nothing spins. */
    seg(x, 0, SEG_ACK, "hello", 5);
    assert_int_equal(host_takes(x, 0), 5);
    fl_drop_all(&x->fl);
    seg(x, 0, SEG_RST, NULL, 0); /* a flow that goes while it waits */
    turn(x, 0);
}

static void test_tcp_from_guest_stops_at_the_limit(void **state)
{
    struct fix *x = start(state, &once, NULL);
    static uint8_t data[30000];
    open_flow(x, 0);
    seg(x, 0, SEG_ACK, data, sizeof(data));
    x->end[0].seq += sizeof(data);
    turn(x, 0);
    assert_in_range(host_takes(x, 0), 20000 - 1460, 20000);
    assert_in_range(net_stats(x->net)->held, 10000, 11460);
    /* The other direction is free. */
    assert_int_equal(send(x->end[0].host, data, sizeof(data), 0), sizeof(data));
    turn(x, 0);
    size_t total = guest_takes(x);
    for (unsigned i = 0; i < 5; i++) {
        turn(x, 0);
        total += guest_takes(x);
    }
    assert_int_equal(total, sizeof(data));
}

static void test_everything_arrives_and_not_too_soon(void **state)
{
    const struct rate_limits fast = {.bytes = {.amount = 20000, .period_ms = 20}};
    struct fix *x = start(state, &fast, &fast);
    static uint8_t data[100000];
    open_flow(x, 0);
    uint64_t began = now_ns();
    assert_int_equal(send(x->end[0].host, data, sizeof(data), 0), sizeof(data));
    for (unsigned i = 0; i < 2; i++) {
        seg(x, 0, SEG_ACK, data, 25000);
        x->end[0].seq += 25000;
    }
    size_t in = 0, out = 0;
    while (in < sizeof(data) || out < 50000) {
        in += guest_takes(x);
        out += host_takes(x, 0);
        turn(x, 100);
        assert_true(now_ns() - began < S(60));
    }
    assert_int_equal(in, sizeof(data));
    assert_int_equal(out, 50000);
    assert_true(now_ns() - began >= MS(79)); /* 80,000 bytes had to wait */
    assert_int_equal(net_stats(x->net)->held, 0);
}

static void test_flows_share(void **state)
{
    const struct rate_limits fast = {.bytes = {.amount = 32000, .period_ms = 20}};
    struct fix *x = start(state, NULL, &fast);
    static uint8_t data[150000];
    for (unsigned i = 0; i < FLOWS; i++)
        open_flow(x, i);
    for (unsigned i = 0; i < FLOWS; i++)
        assert_int_equal(send(x->end[i].host, data, sizeof(data), 0), sizeof(data));
    for (size_t total = 0; total < 250000;) {
        turn(x, 100);
        total += guest_takes(x);
    }
    for (unsigned i = 0; i < FLOWS; i++)
        assert_in_range(x->end[i].got, 50000, 120000);
}

static void test_datagrams(void **state)
{
    const struct rate_limits two = {.packets = {.amount = 2, .period_ms = FOREVER_MS}};
    struct fix *x = start(state, &two, &once);
    static uint8_t buf[4096];
    for (unsigned i = 0; i < 5; i++) {
        fl_udp(&x->fl, &x->cfg.guest4, &x->peer, 5000, 6000, "abcd", i);
        fl_input_end(&x->fl);
    }
    struct sockaddr_storage a;
    socklen_t alen = sizeof(a);
    unsigned arrived = 0;
    while (recvfrom(x->udp_peer, buf, sizeof(buf), MSG_DONTWAIT, (struct sockaddr *)&a, &alen) >= 0)
        arrived++;
    assert_int_equal(arrived, 2);
    assert_int_equal(net_stats(x->net)->udp_limited, 3);
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(sendto(x->udp_peer, buf, 1000, 0, (struct sockaddr *)&a, alen), 1000);
    for (unsigned i = 0; i < 10; i++)
        turn(x, 0);
    /* The rest waits in the socket. */
    assert_in_range(guest_takes(x), 18000, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bucket_fills_with_time),
        cmocka_unit_test(test_bucket_loses_no_fractions),
        cmocka_unit_test(test_bucket_debt_is_bounded),
        cmocka_unit_test(test_bucket_burst_is_spent_once),
        cmocka_unit_test(test_bucket_extremes),
        cmocka_unit_test(test_grants),
        cmocka_unit_test(test_grants_of_packets),
        cmocka_unit_test(test_grants_below_a_packet),
        cmocka_unit_test_teardown(test_tcp_to_guest_stops_at_the_limit, tear_down),
        cmocka_unit_test_teardown(test_tcp_from_guest_stops_at_the_limit, tear_down),
        cmocka_unit_test_teardown(test_everything_arrives_and_not_too_soon, tear_down),
        cmocka_unit_test_teardown(test_flows_share, tear_down),
        cmocka_unit_test_teardown(test_datagrams, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
