/* Policy, names and flows together: what a hostile guest tries, and what an honest one does. The
 * upstream name server and the servers are sockets on the loopback; "public" addresses are dialled
 * nowhere, since only the decision is looked at there. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_link.h"
#include "net/gate.h"
#include "unit.h"

/* The clock of all but the loop itself. */
static uint64_t later_ns;
uint64_t __real_now_ns(void);
uint64_t __wrap_now_ns(void);
uint64_t __wrap_now_ns(void)
{
    return __real_now_ns() + later_ns;
}

struct fix {
    struct loop loop;
    struct fake_link fl;
    struct gate *gate;
    struct gate_config cfg;
    int upstream;
    char last[POLICY_WHY_MAX];
    bool allow;
    unsigned told;
};

static void on_told(void *ctx, const struct gate_decision *d)
{
    struct fix *x = ctx;
    x->told++;
    x->allow = d->allow;
    (void)snprintf(x->last, sizeof(x->last), "%s", d->why);
}

static struct net_addr addr(const char *s)
{
    struct net_addr a;
    assert_int_equal(addr_parse(s, &a), 0);
    return a;
}

/* A socket on the loopback, where no one else has one. */
static int loopback_socket(int type, struct net_end *at)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_storage s;
    socklen_t n = sizeof(s);
    int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&s, &n), 0);
    assert_true(end_from_sockaddr(&s, at));
    return fd;
}

/* proxy: of SOCKS 4; NULL: none. */
static void start_with(struct fix *x, const char *rules, bool strict, const struct net_end *proxy)
{
    struct policy p;
    struct err e = {0};
    *x = (struct fix){.cfg = {.net = fl_config(),
                              .dns = {.n_upstreams = 1},
                              .strict = strict,
                              .tls_port = {8443},
                              .n_tls_ports = 1}};
    if (proxy)
        x->cfg.net.proxy = (struct socks_config){.version = 4, .at = *proxy};
    x->upstream = loopback_socket(SOCK_DGRAM, &x->cfg.dns.upstream[0]);
    assert_int_equal(loop_init(&x->loop), 0);
    fl_init(&x->fl, LINK_CSUM | LINK_TSO4 | LINK_ANY_SIZE);
    policy_init(&p);
    assert_int_equal(policy_add_rules(&p, rules, &e), 0);
    assert_int_equal(gate_new(&x->gate, &x->loop, &x->fl.link, &x->cfg, &p, on_told, x), 0);
    assert_int_equal(p.n, 0);
}

static void start(struct fix *x, const char *rules, bool strict)
{
    start_with(x, rules, strict, NULL);
}

static void stop(struct fix *x)
{
    fl_drop_all(&x->fl);
    gate_free(x->gate);
    loop_fini(&x->loop);
    close_fd(&x->upstream);
}

/* The guest asks; the upstream, if it is asked, answers with that address. The answers got. */
static unsigned resolve(struct fix *x, const char *name, const char *to)
{
    uint8_t m[DNS_UDP_PLAIN];
    struct sockaddr_storage from;
    socklen_t from_len = sizeof(from);
    size_t n = dns_write_question(m, 99, name, DNS_A);
    fl_drop_all(&x->fl);
    fl_udp(&x->fl, &x->cfg.net.guest4, &x->cfg.net.gateway4, 3333, 53, m, n);
    ssize_t k = recvfrom(x->upstream, m, sizeof(m), 0, (struct sockaddr *)&from, &from_len);
    if (k > 0) {
        struct dns_question q;
        struct dns_writer w;
        struct dns_record rec = {.type = DNS_A, .ttl = 60};
        struct net_addr a = addr(to);
        assert_int_equal(dns_read_question(m, (size_t)k, &q), 0);
        (void)snprintf(rec.name, sizeof(rec.name), "%s", q.name);
        memcpy(rec.addr, addr_bytes4(&a), 4);
        dns_begin(&w, m, sizeof(m), &q, DNS_NOERROR);
        dns_put_record(&w, &rec, false);
        n = dns_end(&w, &q);
        assert_int_equal(sendto(x->upstream, m, n, 0, (struct sockaddr *)&from, from_len), n);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(loop_turn(&x->loop, 0), 0);
    }
    struct fl_frame *f = fl_next(&x->fl);
    if (!f)
        abort();
    unsigned answers = be16(f->p + 42 + 6);
    fl_drop_all(&x->fl);
    return answers;
}

static bool may(struct fix *x, const char *peer, uint8_t proto, uint16_t port)
{
    struct net_flow_id id = {.proto = proto,
                             .guest = {.addr = x->cfg.net.guest4, .port = 1},
                             .peer = {.addr = addr(peer), .port = port}};
    return gate_ask(x->gate, &id, x->last).allow;
}

static void test_default_of_public(void **state)
{
    struct fix x;
    start(&x, "allow@public", false);
    assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 443));
    static const char *const no[] = {"127.0.0.1",         "0.0.0.0",  "10.0.0.1",
                                     "169.254.169.254",   "10.0.2.2", "::ffff:127.0.0.1",
                                     "64:ff9b::10.0.0.1", "fe80::1",  "255.255.255.255"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        if (may(&x, no[i], PROTO_TCP, 80))
            fail_msg("%s is reachable", no[i]);
    assert_true(may(&x, "10.0.2.2", PROTO_TCP, 53)); /* names */
    assert_false(may(&x, "10.0.2.2", PROTO_TCP, 853));
    stop(&x);
}

static void test_names_open_what_was_resolved(void **state)
{
    struct fix x;
    start(&x, "allow@example.com", false);
    assert_false(may(&x, "93.184.216.34", PROTO_TCP, 443)); /* known by heart */
    assert_int_equal(resolve(&x, "example.com", "93.184.216.34"), 1);
    assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_string_equal(x.last, "allowed by rule 1: allow@example.com");
    assert_false(may(&x, "93.184.216.34", PROTO_UDP, 443)); /* QUIC hides its name */
    assert_false(may(&x, "93.184.216.35", PROTO_TCP, 443));
    assert_int_equal(resolve(&x, "other.com", "93.184.216.35"), 0);
    assert_string_equal(x.last, "denied: no rule allows it");
    assert_int_equal(resolve(&x, "example.com", "127.0.0.1"), 0); /* rebinding */
    assert_false(may(&x, "127.0.0.1", PROTO_TCP, 443));
    assert_int_equal(gate_dns_stats(x.gate)->filtered, 1);
    stop(&x);
}

/* What the stack's hook says to a flow that shows that name. */
static bool shows_as(struct fix *x, const char *peer, const char *name, enum sniff_kind kind)
{
    struct net_flow_id id = {.proto = PROTO_TCP,
                             .guest = {.addr = x->cfg.net.guest4, .port = 1},
                             .peer = {.addr = addr(peer), .port = 443}};
    return gate_shown(x->gate, &id, GATE_BY_NAME, kind, name);
}

static bool shows(struct fix *x, const char *peer, const char *name)
{
    return shows_as(x, peer, name, SNIFF_TLS);
}

static void test_shown_names(void **state)
{
    struct fix x;
    for (unsigned strict = 0; strict < 2; strict++) {
        start(&x, "allow@example.com,allow@*.good.org", strict);
        assert_int_equal(resolve(&x, "example.com", "93.184.216.34"), 1);
        assert_true(shows(&x, "93.184.216.34", "example.com"));
        assert_true(shows(&x, "93.184.216.34", "EXAMPLE.com."));
        assert_false(shows(&x, "93.184.216.34", "evil.com"));   /* fronting */
        assert_false(shows(&x, "93.184.216.34", "a.good.org")); /* allowed, but not there */
        assert_false(shows(&x, "93.184.216.34", "1.2.3.4"));
        assert_false(shows(&x, "93.184.216.34", "::1"));
        assert_int_equal(shows(&x, "93.184.216.34", ""), !strict);
        /* An encrypted hello: what it shows may not be what it means. */
        assert_int_equal(shows_as(&x, "93.184.216.34", "example.com", SNIFF_ECH), !strict);
        assert_false(shows_as(&x, "93.184.216.34", "evil.com", SNIFF_ECH));
        assert_false(shows_as(&x, "93.184.216.34", "example.com", SNIFF_BROKEN));
        assert_int_equal(resolve(&x, "a.good.org", "93.184.216.34"), 1);
        assert_true(shows(&x, "93.184.216.34", "a.good.org"));
        stop(&x);
    }
}

/* A name opens what its own rules allow, and not what those of another name at its address do. */
static void test_shown_names_of_one_address(void **state)
{
    struct fix x;
    start(&x, "allow@a.org:tcp:443,allow@b.org:tcp:22,allow@c.org:udp", false);
    assert_int_equal(resolve(&x, "a.org", "93.184.216.34"), 1);
    assert_int_equal(resolve(&x, "b.org", "93.184.216.34"), 1);
    assert_int_equal(resolve(&x, "c.org", "93.184.216.34"), 1);
    assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_true(shows(&x, "93.184.216.34", "a.org"));
    assert_string_equal(x.last, "allowed by rule 1: allow@a.org:tcp:443");
    assert_false(shows(&x, "93.184.216.34", "b.org"));
    assert_string_equal(x.last, "denied: no rule allows it");
    assert_false(shows(&x, "93.184.216.34", "c.org"));
    stop(&x);
    start(&x, "allow@a.org:tcp:443,allow@b.org:tcp:22,allow@public", false);
    assert_int_equal(resolve(&x, "a.org", "93.184.216.34"), 1);
    assert_int_equal(resolve(&x, "b.org", "93.184.216.34"), 1);
    assert_true(shows(&x, "93.184.216.34", "b.org")); /* as any other name */
    stop(&x);
}

/* Connections to some hosts are intercepted, by another process. */
static void test_hosts_to_look_into(void **state)
{
    struct fix x;
    static const struct gate_host hosts[] = {{.name = "api.example.com"},
                                             {.name = "good.org", .suffix = true},
                                             {.name = "not.good.org", .bypass = true}};
    start(&x, "allow@public", false);
    struct gate_host *list = malloc(sizeof(hosts));
    assert_non_null(list);
    memcpy(list, hosts, sizeof(hosts));
    gate_set_hosts(x.gate, list, ARRAY_LEN(hosts));
    struct net_flow_id id = {.proto = PROTO_TCP,
                             .guest = {.addr = x.cfg.net.guest4, .port = 1},
                             .peer = {.addr = addr("93.184.216.34"), .port = 443}};
#define SHOWN(kind, name) gate_shown(x.gate, &id, GATE_LOOKED_INTO, kind, name)
    assert_int_equal(SHOWN(SNIFF_TLS, "api.example.com"), NET_REFUSE); /* not resolved here */
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 443));
    assert_int_equal(resolve(&x, "api.example.com", "93.184.216.34"), 1);
    assert_int_equal(SHOWN(SNIFF_TLS, "api.example.com"), NET_DIVERT);
    assert_int_equal(SHOWN(SNIFF_TLS, "API.example.com."), NET_DIVERT);
    assert_int_equal(SHOWN(SNIFF_ECH, "api.example.com"), NET_DIVERT);
    assert_int_equal(SHOWN(SNIFF_HTTP, "api.example.com"), NET_PASS);
    id.peer.port = 80; /* http:// where that was said */
    assert_int_equal(SHOWN(SNIFF_HTTP, "api.example.com"), NET_PASS);
    list[0].plain = true;
    assert_int_equal(SHOWN(SNIFF_HTTP, "api.example.com"), NET_DIVERT);
    assert_int_equal(SHOWN(SNIFF_TLS, "api.example.com"), NET_PASS);
    id.peer.port = 443;
    assert_int_equal(SHOWN(SNIFF_BROKEN, ""), NET_PASS);
    assert_int_equal(SHOWN(SNIFF_TLS, "example.com"), NET_PASS);
    assert_int_equal(SHOWN(SNIFF_TLS, "b.api.example.com"), NET_PASS);
    assert_int_equal(SHOWN(SNIFF_TLS, "a.good.org"), NET_REFUSE);
    assert_int_equal(SHOWN(SNIFF_TLS, "not.good.org"), NET_PASS);
    assert_false(may(&x, "93.184.216.34", PROTO_UDP, 443)); /* QUIC cannot be looked into */
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 444));
    assert_false(may(&x, "93.184.216.34", PROTO_UDP, 8443));
    list[0].quic = true; /* ... but may still be allowed */
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 443));
    assert_int_equal(resolve(&x, "a.good.org", "93.184.216.34"), 1);
    assert_false(may(&x, "93.184.216.34", PROTO_UDP, 443)); /* for all hosts of an address */
    assert_int_equal(resolve(&x, "not.good.org", "93.184.216.36"), 1);
    assert_true(may(&x, "93.184.216.35", PROTO_UDP, 443));
#undef SHOWN
    stop(&x);
}

/* What a flow that was allowed by address may show. */
static bool shows_by_address(struct fix *x, const char *name, enum sniff_kind kind)
{
    struct net_flow_id id = {.proto = PROTO_TCP,
                             .guest = {.addr = x->cfg.net.guest4, .port = 1},
                             .peer = {.addr = addr("93.184.216.34"), .port = 443}};
    return gate_shown(x->gate, &id, GATE_WATCHED, kind, name);
}

static void test_denied_names_are_not_shown(void **state)
{
    struct fix x;
    for (unsigned strict = 0; strict < 2; strict++) {
        start(&x, "allow@fine.evil.com,deny@*.evil.com,deny@two.org:tcp:80,allow@public", strict);
        assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
        assert_false(shows_by_address(&x, "evil.com", SNIFF_TLS));
        assert_string_equal(x.last, "denied by rule 2: deny@*.evil.com");
        assert_false(shows_by_address(&x, "A.Evil.com.", SNIFF_HTTP));
        assert_false(shows_by_address(&x, "fine.evil.com", SNIFF_TLS)); /* not resolved to there */
        assert_true(shows_by_address(&x, "two.org", SNIFF_TLS)); /* that is about another port */
        assert_true(shows_by_address(&x, "good.com", SNIFF_TLS));
        assert_true(shows_by_address(&x, "93.184.216.34", SNIFF_HTTP));
        assert_false(shows_by_address(&x, "evil.com..", SNIFF_HTTP));
        assert_false(shows_by_address(&x, "", SNIFF_BROKEN));
        assert_int_equal(shows_by_address(&x, "", SNIFF_UNKNOWN), !strict);
        assert_int_equal(shows_by_address(&x, "2606::1", SNIFF_HTTP), !strict);
        assert_int_equal(shows_by_address(&x, "good.com", SNIFF_ECH), !strict);
        assert_false(may(&x, "93.184.216.34", PROTO_UDP, 443));
        assert_string_equal(x.last, "denied: a rule denies a name, and QUIC (UDP port 443) hides "
                                    "the name");
        assert_true(may(&x, "93.184.216.34", PROTO_UDP, 444));
        stop(&x);
    }
    start(&x, "deny@evil.com,allow@public:udp:443", false); /* in so many words */
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 443));
    stop(&x);
}

static void test_strict_opens_what_can_show_a_name(void **state)
{
    struct fix x;
    start(&x, "allow@example.com,allow@example.com:udp:7,allow@icmp.org:icmpv4", true);
    assert_int_equal(resolve(&x, "example.com", "93.184.216.34"), 1);
    assert_int_equal(resolve(&x, "icmp.org", "93.184.216.35"), 1);
    assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 7)); /* the rule says so */
    assert_false(may(&x, "93.184.216.34", PROTO_UDP, 8));
    assert_non_null(strstr(x.last, "--net-strict"));
    assert_false(may(&x, "93.184.216.34", PROTO_ICMP, 0));
    assert_non_null(strstr(x.last, "--net-strict"));
    assert_true(may(&x, "93.184.216.35", PROTO_ICMP, 0));
    assert_false(may(&x, "93.184.216.36", PROTO_UDP, 8));
    assert_string_equal(x.last, "denied: no rule allows it");
    stop(&x);
    start(&x, "allow@example.com", false);
    assert_int_equal(resolve(&x, "example.com", "93.184.216.34"), 1);
    assert_true(may(&x, "93.184.216.34", PROTO_UDP, 8));
    assert_true(may(&x, "93.184.216.34", PROTO_ICMP, 0));
    stop(&x);
}

static void test_the_host(void **state)
{
    struct fix x;
    struct net_end at;
    int fd = loopback_socket(SOCK_STREAM, &at);
    assert_int_equal(listen(fd, 4), 0);
    static const char *const rules[] = {"allow@public,allow@private,allow@loopback",
                                        "allow@10.0.0.0/8,allow@10.0.2.2", "allow@host"};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        bool allow = i == 2;
        start(&x, rules[i], false);
        assert_int_equal(resolve(&x, DNS_HOST_NAME, "0.0.0.0"), 1);
        struct fl_seg syn = {.sport = 5,
                             .dport = at.port,
                             .seq = 1,
                             .flags = SEG_SYN,
                             .window = 100,
                             .options = true};
        fl_tcp(&x.fl, &x.cfg.net.guest4, &x.cfg.net.gateway4, &syn);
        fl_input_end(&x.fl);
        for (unsigned k = 0; k < 100 && !fl_next(&x.fl); k++)
            assert_int_equal(loop_turn(&x.loop, 10), 0);
        struct fl_frame *f = fl_next(&x.fl);
        if (!f)
            abort();
        assert_int_equal(f->p[34 + 13], allow ? SEG_SYN | SEG_ACK : SEG_RST | SEG_ACK);
        int c = accept(fd, NULL, NULL);
        assert_int_equal(c >= 0, allow);
        close_fd(&c);
        stop(&x);
    }
    close_fd(&fd);
}

/* Other rules; how many flows they cut. */
static unsigned drop(struct fix *x, const char *rules)
{
    struct policy p;
    struct err e = {0};
    policy_init(&p);
    assert_int_equal(policy_add_rules(&p, rules, &e), 0);
    return gate_set_policy(x->gate, &p, true);
}

static void test_policy_changes(void **state)
{
    struct fix x;
    start(&x, "allow@public", false);
    assert_true(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_int_equal(drop(&x, "allow@example.com"), 0);
    assert_false(may(&x, "93.184.216.34", PROTO_TCP, 443));
    assert_int_equal(resolve(&x, "other.com", "93.184.216.35"), 0);
    stop(&x);
}

static struct fl_frame *next_frame(struct fix *x)
{
    for (unsigned i = 0; i < 100 && !fl_next(&x->fl); i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    return fl_must_next(&x->fl);
}

/* What the other end of a flow gets. */
static void must_receive(struct fix *x, int fd, void *p, size_t n)
{
    ssize_t k = -1;
    for (unsigned i = 0; i < 100 && k < 0; i++) {
        assert_int_equal(loop_turn(&x->loop, 10), 0);
        k = recv(fd, p, n, MSG_DONTWAIT);
    }
    assert_int_equal(k, n);
}

/* Opens a flow from that port to 93.184.216.34, port 80, through a proxy that connects to nothing,
 * and shows a name (NULL: nothing). The proxy's end of it. */
static int open_flow(struct fix *x, int proxy, uint16_t port, const char *name)
{
    struct net_addr peer = addr("93.184.216.34");
    struct fl_seg s = {
        .sport = port, .dport = 80, .seq = 1, .flags = SEG_SYN, .window = 1000, .options = true};
    uint8_t asked[9], granted[8] = {0, 90};
    char text[100];
    int c = -1;
    fl_drop_all(&x->fl);
    fl_tcp(&x->fl, &x->cfg.net.guest4, &peer, &s);
    fl_input_end(&x->fl);
    for (unsigned i = 0; i < 100 && c < 0; i++) {
        assert_int_equal(loop_turn(&x->loop, 10), 0);
        c = accept(proxy, NULL, NULL);
    }
    must_receive(x, c, asked, sizeof(asked));
    assert_int_equal(send(c, granted, sizeof(granted), 0), sizeof(granted));
    struct fl_frame *f = next_frame(x);
    assert_int_equal(f->p[34 + 13], SEG_SYN | SEG_ACK);
    if (name) {
        s = (struct fl_seg){.sport = port,
                            .dport = 80,
                            .seq = 2,
                            .ack = be32(f->p + 34 + 4) + 1,
                            .flags = SEG_ACK,
                            .window = 1000,
                            .data = text};
        s.len = (size_t)snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name);
        fl_tcp(&x->fl, &x->cfg.net.guest4, &peer, &s);
        fl_input_end(&x->fl);
        must_receive(x, c, text, s.len); /* it passed */
    }
    return c;
}

/* Flows are judged by the name for which they were opened, or that they have shown. */
static void test_flows_keep_their_names(void **state)
{
    static const struct {
        const char *before, *name, *after;
        unsigned cut, more; /* more: once the pins have expired */
    } cases[] = {
        {"allow@public", NULL, "allow@a.org", 0, 1}, /* it may have been opened for b.org */
        {"allow@a.org,allow@b.org", NULL, "allow@a.org", 0},
        {"allow@a.org,allow@b.org", NULL, "allow@*.a.org:tcp:80", 0},
        {"allow@a.org,allow@b.org", NULL, "allow@c.org", 1},
        {"allow@a.org,allow@b.org", NULL, "allow@a.org:tcp:443", 1},
        {"allow@a.org,allow@b.org", NULL, "deny@a.org,allow@public", 1},
        {"allow@a.org,allow@b.org", "b.org", "allow@b.org", 0},
        {"allow@a.org,allow@b.org", "b.org", "allow@a.org", 1},
        {"allow@a.org,allow@b.org", "b.org", "deny@b.org,allow@public", 1},
        {"allow@a.org,allow@b.org", "b.org", "deny@c.org,allow@public", 0},
        {"deny@c.org,allow@public", "d.org", "deny@d.org,allow@public", 1},
        {"deny@c.org,allow@public", "d.org", "allow@d.org", 1}, /* it only says so */
        {"deny@c.org,allow@public", "d.org", "allow@d.org,allow@a.org", 1},
        {"deny@c.org,allow@public", "d.org", "allow@d.org,allow@public", 0},
    };
    struct net_end at;
    int proxy = loopback_socket(SOCK_STREAM, &at);
    assert_int_equal(listen(proxy, 4), 0);
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        const size_t k = i / 2;
        bool expired = i % 2;
        struct fix x;
        start_with(&x, cases[k].before, false, &at);
        (void)resolve(&x, "a.org", "93.184.216.34");
        (void)resolve(&x, "b.org", "93.184.216.34");
        int c = open_flow(&x, proxy, 7, cases[k].name);
        later_ns = expired ? (PIN_LEAST_S + 1) * 1000000000ULL : 0;
        unsigned cut = drop(&x, cases[k].after);
        if (cut != cases[k].cut + (expired ? cases[k].more : 0))
            fail_msg("%s, then %s (%d): %u", cases[k].before, cases[k].after, expired, cut);
        later_ns = 0;
        close_fd(&c);
        stop(&x);
    }
    close_fd(&proxy);
}

static void test_explanations(void **state)
{
    struct fix x;
    struct explain_target t;
    struct explain_answer a;
    struct err e = {0};
    start(&x, "deny@93.184.216.35,allow@example.com:tcp:443,allow@other.com", false);
    assert_int_equal(explain_parse("https://example.com/", false, &t, &e), 0);
    gate_explain(x.gate, &t, &a); /* never resolved: what would be */
    assert_true(a.is_name && a.may_ask && a.allow && a.n_peers == 0);
    assert_int_equal(resolve(&x, "example.com", "93.184.216.34"), 1);
    gate_explain(x.gate, &t, &a);
    assert_true(a.allow && a.n_peers == 1 && a.peer[0].allow);
    assert_string_equal(a.why, "allowed by rule 2: allow@example.com:tcp:443");
    t.port = 80;
    gate_explain(x.gate, &t, &a);
    assert_true(a.may_ask && !a.allow && !a.peer[0].allow);
    /* The same address, not by name: it was resolved here, so it counts the same. */
    assert_int_equal(explain_parse("93.184.216.34", false, &t, &e), 0);
    gate_explain(x.gate, &t, &a);
    assert_true(a.allow && !a.is_name);
    /* One address of two is denied: the name is still reachable. */
    assert_int_equal(resolve(&x, "other.com", "93.184.216.35"), 1);
    assert_int_equal(explain_parse("other.com", false, &t, &e), 0);
    gate_explain(x.gate, &t, &a);
    assert_true(!a.allow && a.n_peers == 1);
    assert_string_equal(a.why, "denied by rule 1: deny@93.184.216.35");
    assert_int_equal(resolve(&x, "other.com", "93.184.216.36"), 1);
    gate_explain(x.gate, &t, &a);
    assert_true(a.allow && a.n_peers == 2);
    t.proto = PROTO_UDP; /* QUIC */
    gate_explain(x.gate, &t, &a);
    assert_false(a.allow);
    stop(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_of_public),
        cmocka_unit_test(test_names_open_what_was_resolved),
        cmocka_unit_test(test_shown_names),
        cmocka_unit_test(test_shown_names_of_one_address),
        cmocka_unit_test(test_hosts_to_look_into),
        cmocka_unit_test(test_denied_names_are_not_shown),
        cmocka_unit_test(test_strict_opens_what_can_show_a_name),
        cmocka_unit_test(test_the_host),
        cmocka_unit_test(test_policy_changes),
        cmocka_unit_test(test_flows_keep_their_names),
        cmocka_unit_test(test_explanations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
