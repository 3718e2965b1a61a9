/* SOCKS proxies, played by the test: what the client says, what it makes of answers, and flows and
 * questions that go through one. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>

#include "fake_link.h"
#include "net/gate.h"
#include "net/socks.h"
#include "unit.h"

static struct net_end end(const char *addr, uint16_t port)
{
    struct net_end e = {.port = port};
    assert_int_equal(addr_parse(addr, &e.addr), 0);
    return e;
}

/* --- the client alone ------------------------------------------------------------------------ */

static void expect_out(struct socks *s, const void *p, size_t n)
{
    assert_int_equal(socks_need(s), 0);
    assert_int_equal(socks_pending(s), n);
    assert_memory_equal(s->out + s->out_done, p, n);
    s->out_done = s->out_len;
}

/* All of it, as far as it is wanted; how many bytes were. From exact heap memory. */
static size_t feed(struct socks *s, const void *p, size_t n)
{
    size_t at = 0;
    while (at < n && socks_need(s) > 0) {
        size_t k = MIN(socks_need(s), n - at);
        uint8_t *copy = malloc(k);
        assert_non_null(copy);
        memcpy(copy, (const uint8_t *)p + at, k);
        socks_input(s, copy, k);
        free(copy);
        at += k;
    }
    return at;
}

static void test_plain(void **state)
{
    struct socks_config c = {.version = 5};
    struct net_end to = end("93.184.216.34", 443);
    struct socks s;
    socks_begin(&s, &c, &to);
    expect_out(&s, "\5\1\0", 3);
    assert_int_equal(feed(&s, "\5\0", 2), 2);
    expect_out(&s, "\5\1\0\1\x5d\xb8\xd8\x22\1\xbb", 10);
    assert_int_equal(feed(&s, "\5\0\0\1\1\2\3\4\5\6HELLO", 15), 10); /* and not what comes after */
    assert_int_equal(s.step, SOCKS_DONE);
}

static void test_ipv6_and_names_in_answers(void **state)
{
    struct socks_config c = {.version = 5};
    struct net_end to = end("2001:db8::7", 80);
    struct socks s;
    for (unsigned i = 0; i < 2; i++) {
        socks_begin(&s, &c, &to);
        s.out_done = s.out_len;
        feed(&s, "\5\0", 2);
        expect_out(&s, "\5\1\0\4\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\7\0\x50", 22);
        if (i == 0)
            assert_int_equal(feed(&s, "\5\0\0\4 123456789abcdef12ZZ", 24), 22);
        else
            assert_int_equal(feed(&s, "\5\0\0\3\4host12ZZ", 13), 11);
        assert_int_equal(s.step, SOCKS_DONE);
    }
    uint8_t longest[4 + 1 + 255 + 2 + 9] = {5, 0, 0, 3, 255};
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\0", 2);
    s.out_done = s.out_len;
    assert_int_equal(feed(&s, longest, sizeof(longest)), 4 + 1 + 255 + 2);
    assert_int_equal(s.step, SOCKS_DONE);
}

static void test_password(void **state)
{
    struct socks_config c = {.version = 5, .user = "me", .password = "geheim"};
    struct net_end to = end("93.184.216.34", 443);
    struct socks s;
    socks_begin(&s, &c, &to);
    expect_out(&s, "\5\2\0\2", 4);
    feed(&s, "\5\2", 2);
    expect_out(&s, "\1\2me\6geheim", 11);
    feed(&s, "\1\0", 2);
    assert_int_equal(socks_pending(&s), 10);

    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\2", 2);
    s.out_done = s.out_len;
    feed(&s, "\1\1", 2);
    assert_int_equal(s.step, SOCKS_FAILED);
    assert_int_equal(s.code, EACCES);

    memset(c.user, 'u', SOCKS_TEXT_MAX); /* the longest that there can be */
    memset(c.password, 'p', SOCKS_TEXT_MAX);
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\2", 2);
    assert_int_equal(socks_pending(&s), 3 + 2 * SOCKS_TEXT_MAX);
}

static void test_version_4(void **state)
{
    struct socks_config c = {.version = 4, .user = "id"};
    struct net_end to = end("93.184.216.34", 443), to6 = end("2001:db8::7", 80);
    struct socks s;
    socks_begin(&s, &c, &to);
    expect_out(&s, "\4\1\1\xbb\x5d\xb8\xd8\x22id\0", 11);
    assert_int_equal(feed(&s,
                          "\0\x5a"
                          "123456ZZ",
                          10),
                     8);
    assert_int_equal(s.step, SOCKS_DONE);
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s,
         "\0\x5b"
         "123456",
         8);
    assert_int_equal(s.code, ECONNREFUSED);
    socks_begin(&s, &c, &to6);
    assert_int_equal(s.step, SOCKS_FAILED);
    assert_int_equal(s.code, ENETUNREACH);
}

static void test_refusals(void **state)
{
    static const int codes[] = {
        0,         ECONNREFUSED, EACCES,      ENETUNREACH, EHOSTUNREACH, ECONNREFUSED,
        ETIMEDOUT, ECONNREFUSED, ENETUNREACH, EPROTO};
    struct socks_config c = {.version = 5};
    struct net_end to = end("93.184.216.34", 443);
    struct socks s;
    for (unsigned i = 1; i < ARRAY_LEN(codes); i++) {
        uint8_t reply[] = {5, (uint8_t)i, 0, 1};
        socks_begin(&s, &c, &to);
        s.out_done = s.out_len;
        feed(&s, "\5\0", 2);
        s.out_done = s.out_len;
        feed(&s, reply, sizeof(reply));
        assert_int_equal(s.step, SOCKS_FAILED);
        assert_int_equal(s.code, codes[i]);
        assert_non_null(s.why);
    }
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\xff", 2);
    assert_int_equal(s.code, EACCES);
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\2", 2); /* which was not offered */
    assert_int_equal(s.code, EACCES);
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "HT", 2);
    assert_int_equal(s.code, EPROTO);
    socks_begin(&s, &c, &to);
    s.out_done = s.out_len;
    feed(&s, "\5\0", 2);
    s.out_done = s.out_len;
    feed(&s, "\5\0\1\1", 4); /* a reserved byte that is not */
    assert_int_equal(s.code, EPROTO);
}

/* Every byte of every answer takes every value, and answers come in pieces: it ends in one of two
 * ways, or waits for bytes that fit. */
static void test_any_answer(void **state)
{
    static const uint8_t good[] = {5, 2, 1, 0, 5, 0, 0, 3, 2, 'a', 'b', 1, 2};
    struct socks_config c = {.version = 5, .user = "me", .password = "x"};
    struct net_end to = end("93.184.216.34", 443);
    for (size_t at = 0; at < sizeof(good); at++)
        for (unsigned value = 0; value < 256; value++)
            for (size_t piece = 1; piece <= 4; piece++) {
                struct socks s;
                uint8_t in[sizeof(good) + 300] = {0};
                memcpy(in, good, sizeof(good));
                in[at] = (uint8_t)value;
                socks_begin(&s, &c, &to);
                for (size_t i = 0; i < sizeof(in) && s.step < SOCKS_DONE;) {
                    s.out_done = s.out_len;
                    assert_true(s.need <= sizeof(s.in) && s.have < s.need);
                    size_t n = MIN(MIN(piece, socks_need(&s)), sizeof(in) - i);
                    assert_int_equal(feed(&s, in + i, n), n);
                    i += n;
                }
                assert_true(s.step >= SOCKS_DONE);
            }
}

/* --- flows ----------------------------------------------------------------------------------- */

enum { GPORT = 40000, ISS = 1000 };

struct fix {
    struct loop loop;
    struct fake_link fl;
    struct gate *gate;
    struct gate_config cfg;
    int listener, conn; /* the proxy's */
    char last[POLICY_WHY_MAX];
    bool allow;
};

static void on_told(void *ctx, const struct gate_decision *d)
{
    struct fix *x = ctx;
    x->allow = d->allow;
    (void)snprintf(x->last, sizeof(x->last), "%s", d->why);
}

static int set_up(void **state)
{
    struct fix *x = test_calloc(1, sizeof(*x));
    struct policy p;
    struct err e = {0};
    struct sockaddr_storage a;
    struct net_end any = end("127.0.0.1", 0);
    socklen_t n = end_to_sockaddr(&any, &a);
    x->conn = -1;
    x->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(x->listener, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(x->listener, 8), 0);
    assert_int_equal(getsockname(x->listener, (struct sockaddr *)&a, &n), 0);
    x->cfg = (struct gate_config){.net = fl_config(), .dns = {.n_upstreams = 1}};
    x->cfg.dns.upstream[0] = end("9.9.9.9", 53);
    x->cfg.net.proxy.version = 5;
    assert_true(end_from_sockaddr(&a, &x->cfg.net.proxy.at));
    assert_int_equal(loop_init(&x->loop), 0);
    fl_init(&x->fl, LINK_CSUM | LINK_TSO4 | LINK_ANY_SIZE);
    policy_init(&p);
    assert_int_equal(policy_add_profile(&p, "public,host", &e), 0);
    assert_int_equal(gate_new(&x->gate, &x->loop, &x->fl.link, &x->cfg, &p, on_told, x), 0);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    fl_drop_all(&x->fl);
    gate_free(x->gate);
    loop_fini(&x->loop);
    close_fd(&x->conn);
    close_fd(&x->listener);
    test_free(x);
    return 0;
}

static void turn(struct fix *x)
{
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(loop_turn(&x->loop, 1), 0);
}

static void syn(struct fix *x)
{
    struct net_end peer = end("93.184.216.34", 443);
    struct fl_seg s = {.sport = GPORT,
                       .dport = 443,
                       .seq = ISS,
                       .flags = SEG_SYN,
                       .window = 65000,
                       .options = true};
    fl_tcp(&x->fl, &x->cfg.net.guest4, &peer.addr, &s);
    fl_input_end(&x->fl);
}

static void proxy_accepts(struct fix *x)
{
    turn(x);
    close_fd(&x->conn);
    x->conn = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(x->conn >= 0);
}

static void proxy_hears(struct fix *x, const void *p, size_t n)
{
    uint8_t buf[256];
    turn(x);
    assert_int_equal(recv(x->conn, buf, sizeof(buf), 0), n);
    assert_memory_equal(buf, p, n);
}

static void proxy_says(struct fix *x, const void *p, size_t n)
{
    assert_int_equal(send(x->conn, p, n, MSG_NOSIGNAL), n);
    turn(x);
}

/* One that must be there. */
static struct fl_frame *must_next(struct fix *x)
{
    struct fl_frame *f = fl_next(&x->fl);
    if (!f)
        abort();
    return f;
}

/* The flags of the next TCP frame to the guest, or the type of an ICMP message + 0x100; -1: none */
static int next_frame(struct fix *x, uint32_t *seq)
{
    struct fl_frame *f = fl_next(&x->fl);
    if (!f)
        return -1;
    const uint8_t *ip = f->p + LINK_ETH;
    int r = ip[9] == PROTO_TCP ? ip[20 + 13] : 0x100 + ip[20];
    if (seq)
        *seq = be32(ip + 20 + 4);
    fl_done(&x->fl);
    return r;
}

static void test_flow(void **state)
{
    struct fix *x = *state;
    struct net_end peer = end("93.184.216.34", 443);
    uint32_t seq = 0;
    syn(x);
    assert_true(x->allow);
    proxy_accepts(x);
    proxy_hears(x, "\5\1\0", 3);
    proxy_says(x, "\5", 1);
    proxy_says(x, "\0", 1);
    proxy_hears(x, "\5\1\0\1\x5d\xb8\xd8\x22\1\xbb", 10);
    assert_int_equal(next_frame(x, NULL), -1); /* the guest waits as long as we do */
    assert_int_equal(send(x->conn, "\5\0\0\1\1\2\3\4\5\6HELLO", 15, 0), 15);
    close_fd(&x->conn); /* all in one event, and the end as well */
    turn(x);
    assert_int_equal(next_frame(x, &seq), SEG_SYN | SEG_ACK);
    struct fl_seg s = {.sport = GPORT,
                       .dport = 443,
                       .seq = ISS + 1,
                       .ack = seq + 1,
                       .flags = SEG_ACK,
                       .window = 1000};
    fl_tcp(&x->fl, &x->cfg.net.guest4, &peer.addr, &s);
    fl_input_end(&x->fl);
    turn(x);
    struct fl_frame *f = must_next(x);
    assert_int_equal(f->len, LINK_ETH + 40 + 5);
    assert_memory_equal(f->p + LINK_ETH + 40, "HELLO", 5);
    assert_int_equal(next_frame(x, NULL) & SEG_ACK, SEG_ACK);
    assert_int_equal(next_frame(x, NULL), SEG_FIN | SEG_ACK);
}

static void refuse(struct fix *x, const void *p, size_t n, int frame, const char *why)
{
    syn(x);
    proxy_accepts(x);
    proxy_hears(x, "\5\1\0", 3);
    proxy_says(x, "\5\0", 2);
    turn(x);
    if (n > 0)
        proxy_says(x, p, n);
    else
        close_fd(&x->conn);
    turn(x);
    assert_int_equal(next_frame(x, NULL), frame);
    assert_string_equal(x->last, why);
    assert_int_equal(net_stats(gate_net(x->gate))->tcp_flows, 0);
}

static void test_flow_refused(void **state)
{
    struct fix *x = *state;
    refuse(x, "\5\5\0\1", 4, SEG_RST | SEG_ACK, "the proxy reports that the peer refused it");
    refuse(x, "\5\2\0\1", 4, SEG_RST | SEG_ACK, "the proxy's rules do not allow it");
    refuse(x, "\5\4\0\1", 4, 0x103, "the proxy reports that the host is unreachable");
    refuse(x, "GET!", 4, SEG_RST | SEG_ACK, "the proxy does not speak SOCKS 5");
    refuse(x, NULL, 0, SEG_RST | SEG_ACK, "the proxy hung up");
    close_fd(&x->listener);
    syn(x);
    turn(x);
    assert_int_equal(next_frame(x, NULL), SEG_RST | SEG_ACK);
    assert_string_equal(x->last, "the proxy cannot be reached");
}

static void test_other_protocols(void **state)
{
    struct fix *x = *state;
    struct net_end peer = end("93.184.216.34", 123);
    struct net_flow_id id = {
        .proto = PROTO_UDP, .guest = {.addr = x->cfg.net.guest4, .port = 1}, .peer = peer};
    assert_false(gate_ask(x->gate, &id, x->last).allow);
    assert_string_equal(x->last, "denied: only TCP goes through the proxy");
    fl_udp(&x->fl, &x->cfg.net.guest4, &peer.addr, 5000, 123, "x", 1);
    assert_int_equal(next_frame(x, NULL), 0x103);
    id.peer.addr = x->cfg.net.gateway4; /* the host is reached directly */
    assert_true(gate_ask(x->gate, &id, x->last).allow);
    id.proto = PROTO_TCP;
    id.peer = end("10.1.2.3", 80); /* the policy comes first */
    assert_false(gate_ask(x->gate, &id, x->last).allow);
}

static void test_questions(void **state)
{
    struct fix *x = *state;
    uint8_t m[2 + DNS_UDP_PLAIN], in[512];
    size_t n = dns_write_question(m, 99, "www.example.com", DNS_A);
    fl_udp(&x->fl, &x->cfg.net.guest4, &x->cfg.net.gateway4, 3333, 53, m, n);
    proxy_accepts(x);
    proxy_hears(x, "\5\1\0", 3);
    proxy_says(x, "\5\0", 2);
    proxy_hears(x, "\5\1\0\1\x9\x9\x9\x9\0\x35", 10);
    proxy_says(x, "\5\0\0\1\0\0\0\0\0\0", 10);
    turn(x);
    ssize_t k = recv(x->conn, in, sizeof(in), 0);
    assert_true(k > 14 && be16(in) == (size_t)k - 2);
    struct dns_question q;
    struct dns_writer w;
    struct dns_record rec = {.type = DNS_A, .ttl = 60, .addr = {93, 184, 216, 34}};
    assert_int_equal(dns_read_question(in + 2, (size_t)k - 2, &q), 0);
    (void)snprintf(rec.name, sizeof(rec.name), "%s", q.name);
    dns_begin(&w, m + 2, sizeof(m) - 2, &q, DNS_NOERROR);
    dns_put_record(&w, &rec, false);
    n = dns_end(&w, &q);
    put16(m, (uint16_t)n);
    proxy_says(x, m, n + 2);
    struct fl_frame *f = must_next(x);
    assert_int_equal(be16(f->p + 42 + 6), 1);
    fl_done(&x->fl);

    /* A proxy that refuses: the question fails, at once. */
    n = dns_write_question(m, 100, "www.example.com", DNS_A);
    fl_udp(&x->fl, &x->cfg.net.guest4, &x->cfg.net.gateway4, 3333, 53, m, n);
    proxy_accepts(x);
    proxy_hears(x, "\5\1\0", 3);
    proxy_says(x, "\5\xff", 2);
    f = must_next(x);
    assert_int_equal(f->p[42 + 3] & 15, DNS_SERVFAIL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_ipv6_and_names_in_answers),
        cmocka_unit_test(test_password),
        cmocka_unit_test(test_version_4),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_any_answer),
        cmocka_unit_test_setup_teardown(test_flow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flow_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_protocols, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_questions, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
