/* DNS: messages, pins, and the name server between a guest and an upstream, both played here. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/dns.h"
#include "net/packet.h"
#include "unit.h"
#include "util/cleanup.h"

/* --- messages -------------------------------------------------------------------------------- */

/* A question as a guest would write it; returns its length. */
static size_t ask_bytes(uint8_t *out, uint16_t id, const char *name, uint16_t type, uint16_t udp)
{
    size_t n = dns_write_question(out, id, name, type);
    assert_true(n > 0);
    if (udp == 0) { /* without OPT */
        put16(out + 10, 0);
        return n - 11;
    }
    put16(out + n - 8, udp);
    return n;
}

static void test_question(void **state)
{
    uint8_t m[DNS_UDP_PLAIN];
    struct dns_question q;
    size_t n = ask_bytes(m, 77, "WWW.Example.com", DNS_AAAA, 0);
    assert_int_equal(dns_read_question(m, n, &q), 0);
    assert_int_equal(q.id, 77);
    assert_string_equal(q.name, "www.example.com");
    assert_int_equal(q.type, DNS_AAAA);
    assert_false(q.edns);
    assert_int_equal(q.udp_size, 512);
    n = ask_bytes(m, 77, "a.b", DNS_A, 1400);
    assert_int_equal(dns_read_question(m, n, &q), 0);
    assert_true(q.edns);
    assert_int_equal(q.udp_size, 1400);
    for (size_t i = 0; i < n; i++) /* cut anywhere */
        assert_true(dns_read_question(m, i, &q) != 0);
    m[2] |= 0x80;
    assert_int_equal(dns_read_question(m, n, &q), -1); /* an answer */
    m[2] = 0x28;
    assert_int_equal(dns_read_question(m, n, &q), DNS_NOTIMP); /* an update */
}

static void test_bad_names(void **state)
{
    struct dns_question q;
    static const struct {
        const char *bytes;
        size_t n;
    } names[] = {
        {"\xc0\x0c", 2}, /* itself */
        {"\x01"
         "a\xc0\x0c",
         4},             /* a loop */
        {"\xc0\x0e", 2}, /* forward */
        {"\x40xxxx", 5}, /* a label type that does not exist */
        {"\x05"
         "abc",
         4}, /* beyond the end */
        {"\x03"
         "a b\x00",
         5}, /* a space */
        {"\x03"
         "a.b\x00",
         5}, /* a dot inside */
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        uint8_t m[64] = {[5] = 1};
        memcpy(m + 12, names[i].bytes, names[i].n);
        memcpy(m + 12 + names[i].n, "\0\1\0\1", 4);
        if (dns_read_question(m, 16 + names[i].n, &q) != DNS_FORMERR)
            fail_msg("name %zu was accepted", i);
    }
    uint8_t m[600] = {[5] = 1};
    for (unsigned i = 0; i < 5; i++) { /* five labels of 63: too long */
        m[12 + 64 * i] = 63;
        memset(m + 13 + (size_t)64 * i, 'a', 63);
    }
    memcpy(m + 12 + 320, "\0\0\1\0\1", 5);
    assert_int_equal(dns_read_question(m, 12 + 325, &q), DNS_FORMERR);
}

static void test_records_round_trip(void **state)
{
    struct dns_question q = {.id = 5, .type = DNS_A, .name = "a.b", .edns = true};
    struct dns_record in[] = {
        {.name = "a.b", .type = DNS_CNAME, .ttl = 9, .target = "c.d"},
        {.name = "c.d", .type = DNS_A, .ttl = 10, .addr = {1, 2, 3, 4}},
        {.name = "c.d", .type = DNS_AAAA, .ttl = 11, .addr = {0x20, [15] = 1}},
        {.name = "c.d", .type = DNS_MX, .ttl = 12, .num = {7}, .target = "m.d"},
        {.name = "_x._tcp.d", .type = DNS_SRV, .ttl = 13, .num = {1, 2, 3}, .target = "s.d"},
        {.name = "d",
         .type = DNS_SOA,
         .ttl = 14,
         .target = "ns.d",
         .mail = "me.d",
         .soa = {1, [19] = 2}},
    };
    uint8_t m[1000];
    struct dns_writer w;
    dns_begin(&w, m, sizeof(m), &q, DNS_NOERROR);
    for (size_t i = 0; i < ARRAY_LEN(in); i++)
        dns_put_record(&w, &in[i], false);
    size_t n = dns_end(&w, &q);
    struct dns_reader r;
    struct dns_record rec;
    assert_int_equal(dns_read_answer(&r, m, n, 5, "a.b", DNS_A), 0);
    for (size_t i = 0; i < ARRAY_LEN(in); i++) {
        assert_int_equal(dns_next(&r, &rec), 1);
        assert_memory_equal(&rec, &in[i], sizeof(rec));
    }
    assert_int_equal(dns_next(&r, &rec), 0);
    assert_int_equal(dns_read_answer(&r, m, n, 6, "a.b", DNS_A), -EBADMSG);
    assert_int_equal(dns_read_answer(&r, m, n, 5, "a.c", DNS_A), -EBADMSG);
    assert_int_equal(dns_read_answer(&r, m, n, 5, "a.b", DNS_MX), -EBADMSG);
    /* Too small a buffer: cut short, and said so. */
    dns_begin(&w, m, 60, &q, DNS_NOERROR);
    for (size_t i = 0; i < ARRAY_LEN(in); i++)
        dns_put_record(&w, &in[i], false);
    n = dns_end(&w, &q);
    assert_true(n <= 60);
    assert_int_equal(dns_read_answer(&r, m, n, 5, "a.b", DNS_A), 0);
    assert_true(r.truncated);
    assert_int_equal(r.left, 0);
}

/* --- pins ------------------------------------------------------------------------------------ */

static void test_pins(void **state)
{
    struct pins *p = pins_new();
    struct net_addr a, b;
    const uint64_t s = 1000000000ULL;
    (void)addr_parse("1.2.3.4", &a);
    (void)addr_parse("1.2.3.5", &b);
    pins_add(p, &a, "www.example.com", 300, s);
    assert_true(pins_match(p, &a, "www.example.com", false, 2 * s));
    assert_true(pins_match(p, &a, "example.com", true, 2 * s));
    assert_false(pins_match(p, &a, "example.com", false, 2 * s));
    assert_false(pins_match(p, &b, "www.example.com", false, 2 * s));
    assert_true(pins_match(p, &a, "www.example.com", false, 300 * s));
    assert_false(pins_match(p, &a, "www.example.com", false, 302 * s));
    assert_string_equal(pins_name(p, &a, 2 * s), "www.example.com");
    assert_null(pins_name(p, &a, 302 * s));
    pins_add(p, &a, "ttl.zero", 0, s);
    assert_true(pins_match(p, &a, "ttl.zero", false, 30 * s));
    for (unsigned i = 0; i < 2 * PINS_MAX; i++) { /* bounded */
        uint8_t x[4] = {9, (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        struct net_addr many = addr_from4(x);
        pins_add(p, &many, "many", 3600 + i, s);
    }
    assert_false(pins_match(p, &a, "www.example.com", false, 2 * s)); /* made room */
    pins_free(p);
}

/* --- the server ------------------------------------------------------------------------------ */

struct fix {
    struct loop loop;
    struct policy policy;
    struct pins *pins;
    struct dns *dns;
    int up[2], up_tcp; /* upstreams */
    struct net_end guest, gateway;
    uint8_t reply[DNS_MSG_MAX];
    size_t reply_len;
    unsigned replies, decided;
    bool filtered;
};

static void on_reply(void *ctx, const struct net_end *from, const struct net_end *to, const void *p,
                     size_t n)
{
    struct fix *x = ctx;
    assert_true(end_equal(from, &x->gateway) && end_equal(to, &x->guest));
    memcpy(x->reply, p, n);
    x->reply_len = n;
    x->replies++;
}

static void on_decided(void *ctx, const char *name, uint16_t type, const struct policy_answer *a,
                       bool filtered)
{
    struct fix *x = ctx;
    x->decided++;
    x->filtered = filtered;
}

static const struct dns_hooks hooks = {on_reply, on_decided};

static int bind_loopback(int kind, uint16_t port, struct net_end *ret)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_storage s;
    socklen_t n = sizeof(s);
    int fd = socket(AF_INET, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        (kind == SOCK_STREAM && listen(fd, 8) < 0)) {
        (void)close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&s, &n), 0);
    assert_true(end_from_sockaddr(&s, ret));
    return fd;
}

static int set_up(void **state)
{
    struct fix *x = test_calloc(1, sizeof(*x));
    struct dns_config c = {.n_upstreams = 2, .timeout_ms = 10000};
    struct err e = {0};
    struct net_end t;
    assert_int_equal(loop_init(&x->loop), 0);
    x->up[1] = bind_loopback(SOCK_DGRAM, 0, &c.upstream[1]);
    for (unsigned i = 0; i < 50; i++) { /* the same port for UDP and TCP */
        x->up[0] = bind_loopback(SOCK_DGRAM, 0, &c.upstream[0]);
        x->up_tcp = bind_loopback(SOCK_STREAM, c.upstream[0].port, &t);
        if (x->up_tcp >= 0)
            break;
        close_fd(&x->up[0]);
    }
    assert_true(x->up_tcp >= 0);
    (void)addr_parse("10.0.2.2", &c.host4);
    (void)addr_parse("10.0.2.15", &x->guest.addr);
    x->gateway = (struct net_end){.addr = c.host4, .port = 53};
    x->guest.port = 5555;
    policy_init(&x->policy);
    assert_int_equal(
        policy_add_rules(&x->policy, "allow@example.com,allow@*.good.org,deny@evil.com", &e), 0);
    x->pins = pins_new();
    assert_int_equal(dns_new(&x->dns, &x->loop, &c, &x->policy, x->pins, &hooks, x), 0);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    dns_free(x->dns);
    pins_free(x->pins);
    policy_free(&x->policy);
    close_fd(&x->up[0]);
    close_fd(&x->up[1]);
    close_fd(&x->up_tcp);
    loop_fini(&x->loop);
    test_free(x);
    return 0;
}

static void question(struct fix *x, const char *name, uint16_t type)
{
    uint8_t m[DNS_UDP_PLAIN];
    size_t n = ask_bytes(m, 1234, name, type, 0);
    x->replies = 0;
    dns_datagram(x->dns, &x->guest, &x->gateway, m, n);
}

static uint8_t rcode(const struct fix *x)
{
    assert_int_equal(x->replies, 1);
    assert_int_equal(be16(x->reply), 1234);
    return x->reply[3] & 15;
}

static unsigned answers(const struct fix *x)
{
    return be16(x->reply + 6);
}

struct upstream {
    struct dns_question q;
    struct sockaddr_storage from;
    socklen_t from_len;
};

/* The question that upstream i got; false if none came. */
static bool asked(struct fix *x, unsigned i, struct upstream *u)
{
    uint8_t m[DNS_UDP_PLAIN];
    u->from_len = sizeof(u->from);
    ssize_t n = recvfrom(x->up[i], m, sizeof(m), 0, (struct sockaddr *)&u->from, &u->from_len);
    if (n < 0)
        return false;
    assert_int_equal(dns_read_question(m, (size_t)n, &u->q), 0);
    return true;
}

static size_t make_answer(uint8_t *m, size_t max, const struct dns_question *q, uint8_t code,
                          const struct dns_record *rec, unsigned n)
{
    struct dns_writer w;
    dns_begin(&w, m, max, q, code);
    for (unsigned i = 0; i < n; i++)
        dns_put_record(&w, &rec[i], false);
    return dns_end(&w, q);
}

static void answer(struct fix *x, unsigned i, const struct upstream *u, uint8_t code,
                   const struct dns_record *rec, unsigned n)
{
    uint8_t m[DNS_MSG_MAX];
    size_t len = make_answer(m, sizeof(m), &u->q, code, rec, n);
    assert_int_equal(sendto(x->up[i], m, len, 0, (const struct sockaddr *)&u->from, u->from_len),
                     len);
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void test_unlisted_names_go_nowhere(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    static const char *const names[] = {"unlisted.net", "evil.com", "www.example.com", "com",
                                        "secret-data-here.tunnel.example.net"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        question(x, names[i], DNS_A);
        assert_int_equal(rcode(x), DNS_NXDOMAIN);
        assert_false(asked(x, 0, &u) || asked(x, 1, &u));
    }
    assert_int_equal(dns_stats(x->dns)->upstream, 0);
    assert_int_equal(x->decided, ARRAY_LEN(names));
}

static void test_listed_name(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    struct net_addr a;
    const struct dns_record rec[] = {
        {.name = "example.com", .type = DNS_CNAME, .ttl = 30, .target = "cdn.net"},
        {.name = "cdn.net", .type = DNS_A, .ttl = 30, .addr = {93, 184, 216, 34}},
        {.name = "stray.org", .type = DNS_A, .ttl = 30, .addr = {93, 184, 216, 35}},
    };
    question(x, "Example.COM", DNS_A);
    assert_int_equal(x->replies, 0);
    assert_true(asked(x, 0, &u));
    assert_string_equal(u.q.name, "example.com");
    answer(x, 0, &u, DNS_NOERROR, rec, 3);
    assert_int_equal(rcode(x), DNS_NOERROR);
    assert_int_equal(answers(x), 2); /* the stray one does not belong to it */
    (void)addr_parse("93.184.216.34", &a);
    assert_true(pins_match(x->pins, &a, "example.com", false, now_ns()));
    assert_false(pins_match(x->pins, &a, "cdn.net", false, now_ns()));
    (void)addr_parse("93.184.216.35", &a);
    assert_null(pins_name(x->pins, &a, now_ns()));
}

static void test_rebinding(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    static const uint8_t bad4[][4] = {{127, 0, 0, 1}, {10, 0, 0, 1},        {192, 168, 0, 1},
                                      {0, 0, 0, 0},   {169, 254, 169, 254}, {224, 0, 0, 1}};
    static const char *const bad6[] = {
        "::1",          "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::10.0.0.1",
        "2002:7f00:1::"};
    for (size_t i = 0; i < ARRAY_LEN(bad4); i++) {
        struct dns_record rec[] = {
            {.name = "example.com", .type = DNS_A, .ttl = 1, .addr = {93, 184, 216, 34}},
            {.name = "example.com", .type = DNS_A, .ttl = 1}};
        memcpy(rec[1].addr, bad4[i], 4);
        question(x, "example.com", DNS_A);
        assert_true(asked(x, 0, &u));
        answer(x, 0, &u, DNS_NOERROR, rec, 2);
        assert_int_equal(rcode(x), DNS_NXDOMAIN);
        assert_int_equal(answers(x), 0);
        assert_true(x->filtered);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad6); i++) {
        struct dns_record rec = {.name = "example.com", .type = DNS_AAAA};
        struct net_addr a;
        (void)addr_parse(bad6[i], &a);
        memcpy(rec.addr, a.b, 16);
        question(x, "example.com", DNS_AAAA);
        assert_true(asked(x, 0, &u));
        answer(x, 0, &u, DNS_NOERROR, &rec, 1);
        assert_int_equal(answers(x), 0);
        assert_null(pins_name(x->pins, &a, now_ns()));
    }
    struct dns_record rec[] = {{.name = "example.com", .type = DNS_CNAME, .target = "evil.com"},
                               {.name = "evil.com", .type = DNS_A, .addr = {93, 184, 216, 34}}};
    question(x, "example.com", DNS_A);
    assert_true(asked(x, 0, &u));
    answer(x, 0, &u, DNS_NOERROR, rec, 2);
    assert_int_equal(rcode(x), DNS_NXDOMAIN); /* an alias of what is denied */
    struct net_addr a;
    (void)addr_parse("93.184.216.34", &a);
    assert_null(pins_name(x->pins, &a, now_ns()));
}

static void test_private_address_that_a_rule_names(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    struct err e = {0};
    assert_int_equal(policy_add_rules(&x->policy, "allow@10.0.0.0/8", &e), 0);
    const struct dns_record rec = {.name = "example.com", .type = DNS_A, .addr = {10, 1, 1, 1}};
    question(x, "example.com", DNS_A);
    assert_true(asked(x, 0, &u));
    answer(x, 0, &u, DNS_NOERROR, &rec, 1);
    assert_int_equal(answers(x), 1);
}

static void test_forged_answers(void **state)
{
    struct fix *x = *state;
    struct upstream u, bad;
    const struct dns_record rec = {.name = "example.com", .type = DNS_A, .addr = {8, 8, 8, 8}};
    question(x, "example.com", DNS_A);
    assert_true(asked(x, 0, &u));
    bad = u;
    bad.q.id++;
    answer(x, 0, &bad, DNS_NOERROR, &rec, 1);
    bad = u;
    (void)snprintf(bad.q.name, sizeof(bad.q.name), "example.org");
    answer(x, 0, &bad, DNS_NOERROR, &rec, 1);
    answer(x, 1, &u, DNS_NOERROR, &rec, 1); /* from another server */
    assert_int_equal(x->replies, 0);
    answer(x, 0, &u, DNS_NOERROR, &rec, 1);
    assert_int_equal(answers(x), 1);
}

static void test_second_upstream(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    const struct dns_record rec = {.name = "a.good.org", .type = DNS_A, .addr = {8, 8, 8, 8}};
    question(x, "a.good.org", DNS_A);
    assert_true(asked(x, 0, &u));
    answer(x, 0, &u, DNS_SERVFAIL, NULL, 0);
    assert_int_equal(x->replies, 0);
    assert_true(asked(x, 1, &u));
    answer(x, 1, &u, DNS_NOERROR, &rec, 1);
    assert_int_equal(rcode(x), DNS_NOERROR);
    close_fd(&x->up[0]); /* unreachable: tries the next at once */
    close_fd(&x->up[1]);
    question(x, "a.good.org", DNS_A);
    for (unsigned i = 0; i < 50 && x->replies == 0; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    assert_int_equal(rcode(x), DNS_SERVFAIL);
}

/* The guest asks by TCP, too, and the upstream's answer by TCP has that length; longer than a message
 * may be: only its beginning is sent, and the next upstream is asked. */
static void check_answer_by_tcp(struct fix *x, size_t len)
{
    struct upstream u;
    uint8_t m[2 + DNS_MSG_MAX + 1] = {0};
    struct dns_record rec[100] = {0};
    for (unsigned i = 0; i < ARRAY_LEN(rec); i++)
        rec[i] = (struct dns_record){
            .name = "example.com", .type = DNS_A, .ttl = 5, .addr = {8, 8, (uint8_t)i, 8}};
    int guest = dns_connect(x->dns);
    assert_true(guest >= 0);
    size_t n = ask_bytes(m + 2, 1234, "example.com", DNS_A, 0);
    put16(m, (uint16_t)n);
    assert_int_equal(send(guest, m, 5, 0), 5);
    assert_int_equal(loop_turn(&x->loop, 0), 0);
    assert_int_equal(send(guest, m + 5, n - 3, 0), n - 3);
    assert_int_equal(loop_turn(&x->loop, 0), 0);
    assert_true(asked(x, 0, &u));
    u.q.edns = false;
    n = make_answer(m, 100, &u.q, DNS_NOERROR, rec, 100); /* cut short */
    assert_int_equal(sendto(x->up[0], m, n, 0, (struct sockaddr *)&u.from, u.from_len), n);
    int c = -1;
    for (unsigned i = 0; i < 50 && c < 0; i++) {
        assert_int_equal(loop_turn(&x->loop, 10), 0);
        c = accept(x->up_tcp, NULL, NULL);
    }
    assert_true(c >= 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    ssize_t k = recv(c, m, sizeof(m), 0);
    assert_true(k > 2);
    assert_int_equal(dns_read_question(m + 2, (size_t)k - 2, &u.q), 0);
    memset(m, 0, sizeof(m));
    n = make_answer(m + 2, sizeof(m) - 2, &u.q, DNS_NOERROR, rec, 100);
    assert_true(n < len);
    put16(m, (uint16_t)len);
    n = len > DNS_MSG_MAX ? n : len;
    assert_int_equal(send(c, m, n + 2, 0), n + 2);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    k = recv(guest, m, sizeof(m), MSG_DONTWAIT);
    if (len > DNS_MSG_MAX) {
        assert_int_equal(k, -1);
        assert_true(asked(x, 1, &u));
    } else {
        assert_true(k > 2);
        assert_int_equal(be16(m), k - 2);
        assert_int_equal(be16(m + 2), 1234);
        assert_int_equal(be16(m + 8), 100);
    }
    close_fd(&c);
    close_fd(&guest);
    assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void test_long_answers_by_tcp(void **state)
{
    static const size_t len[] = {3000, 12288, 13000, DNS_MSG_MAX, DNS_MSG_MAX + 1};
    for (size_t i = 0; i < ARRAY_LEN(len); i++)
        check_answer_by_tcp(*state, len[i]);
}

static void test_types(void **state)
{
    struct fix *x = *state;
    struct upstream u;
    question(x, "example.com", 16); /* TXT */
    assert_int_equal(rcode(x), DNS_REFUSED);
    question(x, "example.com", 255); /* ANY */
    assert_int_equal(rcode(x), DNS_REFUSED);
    question(x, "example.com", DNS_HTTPS);
    assert_int_equal(rcode(x), DNS_NOERROR);
    assert_int_equal(answers(x), 0);
    assert_false(asked(x, 0, &u));
    question(x, DNS_HOST_NAME, DNS_A);
    assert_int_equal(rcode(x), DNS_NOERROR);
    assert_int_equal(answers(x), 1);
    assert_false(asked(x, 0, &u));
}

static void test_too_many_questions(void **state)
{
    struct fix *x = *state;
    unsigned refused = 0;
    for (unsigned i = 0; i < DNS_QUERIES_MAX + 10; i++) {
        question(x, "example.com", DNS_A);
        refused += x->replies == 1 && rcode(x) == DNS_REFUSED;
    }
    assert_int_equal(refused, 10);
    assert_int_equal(dns_stats(x->dns)->limited, 10);
    int fd[DNS_CLIENTS_MAX + 1];
    for (unsigned i = 0; i < DNS_CLIENTS_MAX; i++)
        assert_true((fd[i] = dns_connect(x->dns)) >= 0);
    assert_int_equal(dns_connect(x->dns), -EMFILE);
    for (unsigned i = 0; i < DNS_CLIENTS_MAX; i++)
        close_fd(&fd[i]);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_question),
        cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_records_round_trip),
        cmocka_unit_test(test_pins),
        T(test_unlisted_names_go_nowhere),
        T(test_listed_name),
        T(test_rebinding),
        T(test_private_address_that_a_rule_names),
        T(test_forged_answers),
        T(test_second_upstream),
        T(test_long_answers_by_tcp),
        T(test_types),
        T(test_too_many_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
