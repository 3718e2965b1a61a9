/* What the stack does with frames other than TCP's: neighbors, pings, datagrams, fragments. */

#include "fake_link.h"
#include "net/csum.h"
#include "unit.h"

struct fix {
    struct loop loop;
    struct fake_link fl;
    struct net *net;
    struct net_config cfg;
    struct net_addr peer;
    unsigned datagrams;
    uint8_t datagram[2048];
    size_t datagram_len;
};

/* All is denied that is not for the name server. */
static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
}

static bool on_datagram(void *ctx, const struct net_flow_id *id, const void *p, size_t n)
{
    struct fix *x = ctx;
    if (id->peer.port != 53)
        return false;
    x->datagrams++;
    x->datagram_len = n;
    memcpy(x->datagram, p, MIN(n, sizeof(x->datagram)));
    return true;
}

static const struct net_hooks hooks = {.verdict = on_verdict, .datagram = on_datagram};

static int set_up(void **state)
{
    struct fix *x = test_calloc(1, sizeof(*x));
    fl_init(&x->fl, LINK_CSUM | LINK_TSO4 | LINK_TSO6 | LINK_ANY_SIZE);
    assert_int_equal(loop_init(&x->loop), 0);
    x->cfg = fl_config();
    assert_int_equal(net_new(&x->net, &x->loop, &x->fl.link, &x->cfg, &hooks, x), 0);
    assert_int_equal(addr_parse("93.184.216.34", &x->peer), 0);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    fl_drop_all(&x->fl);
    net_free(x->net);
    loop_fini(&x->loop);
    test_free(x);
    return 0;
}

static void test_arp(void **state)
{
    struct fix *x = *state;
    uint8_t f[42] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 15, 8, 6,
                     0,    1,    8,    0,    6,    4,    0, 1, 2, 0, 0, 0,  0, 15};
    memcpy(f + 28, addr_bytes4(&x->cfg.guest4), 4);
    memcpy(f + 38, addr_bytes4(&x->cfg.gateway4), 4);
    fl_input(&x->fl, f, sizeof(f));
    struct fl_frame *r = fl_must_next(&x->fl);
    assert_int_equal(be16(r->p + 20), 2);
    assert_memory_equal(r->p + 22, fl_gateway_mac, 6);
    fl_done(&x->fl);
    f[41]++; /* someone else */
    fl_input(&x->fl, f, sizeof(f));
    f[41]--;
    fl_input(&x->fl, f, 41);
    f[21] = 2; /* an unsolicited reply */
    fl_input(&x->fl, f, sizeof(f));
    assert_null(fl_next(&x->fl));
}

static void test_neighbor_discovery_and_ping(void **state)
{
    struct fix *x = *state;
    uint8_t f[128] = {0};
    size_t n = fl_ip(f, &x->cfg.guest6, &x->cfg.gateway6, PROTO_ICMP6, 24);
    f[n] = 135;
    memcpy(f + n + 8, x->cfg.gateway6.b, 16);
    fl_input(&x->fl, f, n + 24);
    struct fl_frame *r = fl_must_next(&x->fl);
    assert_int_equal(r->p[n], 136);
    assert_memory_equal(r->p + n + 26, fl_gateway_mac, 6);
    uint64_t sum = csum_pseudo(&x->cfg.gateway6, &x->cfg.guest6, PROTO_ICMP6, 32);
    assert_int_equal(csum_finish(csum_add(sum, r->p + n, 32)), 0);
    fl_done(&x->fl);
    f[n + 23] ^= 0x40; /* a neighbor that could be there, the guest itself, one that could not */
    fl_input(&x->fl, f, n + 24);
    assert_memory_equal(fl_must_next(&x->fl)->p + n + 8, f + n + 8, 16);
    fl_done(&x->fl);
    memcpy(f + n + 8, x->cfg.guest6.b, 16);
    fl_input(&x->fl, f, n + 24);
    f[n + 8] = 0x20;
    fl_input(&x->fl, f, n + 24);
    assert_null(fl_next(&x->fl));
    f[n] = 128;
    put16(f + n + 4, 7);
    fl_input(&x->fl, f, n + 24);
    r = fl_must_next(&x->fl);
    assert_int_equal(r->p[n], 129);
    assert_int_equal(be16(r->p + n + 4), 7);
    fl_done(&x->fl);
    f[n] = 134; /* the guest is no router */
    fl_input(&x->fl, f, n + 24);
    assert_null(fl_next(&x->fl));
}

static void test_datagrams(void **state)
{
    struct fix *x = *state;
    fl_udp(&x->fl, &x->cfg.guest4, &x->cfg.gateway4, 5000, 53, "question", 8);
    assert_int_equal(x->datagrams, 1);
    assert_memory_equal(x->datagram, "question", 8);
    struct net_end gw = {.addr = x->cfg.gateway4, .port = 53},
                   me = {.addr = x->cfg.guest4, .port = 5000};
    net_send_udp(x->net, &gw, &me, "answer", 6);
    struct fl_frame *r = fl_must_next(&x->fl);
    assert_int_equal(be16(r->p + 34), 53);
    assert_int_equal(be16(r->p + 36), 5000);
    assert_memory_equal(r->p + 42, "answer", 6);
    fl_done(&x->fl);
    fl_udp(&x->fl, &x->cfg.guest4, &x->peer, 5000, 9, "x", 1); /* denied: an error at once */
    r = fl_must_next(&x->fl);
    assert_int_equal(r->p[LINK_ETH + 9], PROTO_ICMP);
    assert_int_equal(r->p[34], 3);
    assert_int_equal(r->p[35], 13);
    assert_int_equal(be16(r->p + 34 + 8 + 20), 5000); /* about this one */
    assert_int_equal(csum_finish(csum_add(0, r->p + 34, r->len - 34)), 0);
    assert_int_equal(net_stats(x->net)->udp_flows, 0);
}

/* A fragment of a datagram to the gateway's port 53. */
static void fragment(struct fix *x, uint16_t id, uint16_t off, bool more, const void *p, size_t n)
{
    uint8_t f[2000];
    size_t hl = fl_ip(f, &x->cfg.guest4, &x->cfg.gateway4, PROTO_UDP, n);
    put16(f + LINK_ETH + 4, id);
    put16(f + LINK_ETH + 6, (uint16_t)(off / 8 | (more ? 0x2000 : 0)));
    memcpy(f + hl, p, n);
    fl_input(&x->fl, f, hl + n);
}

static void test_fragments(void **state)
{
    struct fix *x = *state;
    uint8_t d[40] = {0x13, 0x88, 0, 53, 0, 40};
    memcpy(d + 8, "abcdefghijklmnopqrstuvwxyz012345", 32);
    fragment(x, 1, 0, true, d, 16);
    fragment(x, 1, 16, true, d + 16, 16);
    assert_int_equal(x->datagrams, 0);
    fragment(x, 1, 32, false, d + 32, 8);
    assert_int_equal(x->datagrams, 1);
    assert_int_equal(x->datagram_len, 32);
    assert_memory_equal(x->datagram, d + 8, 32);
    fragment(x, 2, 0, true, d, 16); /* overlaps */
    fragment(x, 2, 8, false, d + 8, 32);
    fragment(x, 2, 16, false, d + 16, 24);
    fragment(x, 3, 0, true, d, 16); /* a gap */
    fragment(x, 3, 24, false, d + 24, 16);
    fragment(x, 4, 16, false, d + 16, 24); /* no beginning */
    fragment(x, 5, 0, true, d, 15);        /* no multiple of eight */
    assert_int_equal(x->datagrams, 1);
    for (uint16_t i = 0; i < 100; i++) /* more than there is room for */
        fragment(x, (uint16_t)(100 + i), 0, true, d, 16);
    fragment(x, 100, 16, false, d + 16, 24);
    assert_int_equal(x->datagrams, 2);
    fragment(x, 199, 16, false, d + 16, 24);
    assert_int_equal(x->datagrams, 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_arp),
        T(test_neighbor_discovery_and_ping),
        T(test_datagrams),
        T(test_fragments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
