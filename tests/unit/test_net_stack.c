/* TCP with guests that behave and guests that do not; the host's ends are socket pairs. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "fake_link.h"
#include "net/csum.h"
#include "unit.h"

enum {
    GPORT = 40000,
    ISS = 1000,
    MAX = 8,
    CAPS = LINK_CSUM | LINK_TSO4 | LINK_TSO6 | LINK_ANY_SIZE
};
enum { PORT_LOCAL = 80, PORT_DENIED = 81, PORT_DIAL = 82, PORT_SNIFF = 443 };

struct fix {
    struct loop loop;
    struct fake_link fl;
    struct net *net;
    struct net_config cfg;
    struct net_addr peer;
    int host; /* our end of the last flow's socket pair */
    struct net_end dial;
    unsigned verdicts, ended;
    const char *how;
    struct net_flow_end end;
    bool allow_name;
    char name[SNIFF_NAME_MAX];
    /* The guest's end. */
    uint32_t seq, ack;
    bool looked_at; /* the first frame of the stack that is not freed yet */
};

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    struct fix *x = ctx;
    int pair[2];
    x->verdicts++;
    if (id->peer.port == PORT_DENIED || id->proto != PROTO_TCP)
        return;
    if (id->peer.port == PORT_DIAL) {
        v->action = NET_ALLOW;
        v->to = x->dial;
        v->tag = 42;
        return;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    v->action = NET_LOCAL;
    v->fd = pair[0];
    v->sniff = id->peer.port == PORT_SNIFF;
    v->tag = 42;
    v->name = "a.b";
    close_fd(&x->host);
    x->host = pair[1];
}

static enum net_passage on_named(void *ctx, const struct net_flow_id *id, uint64_t tag,
                                 enum sniff_kind kind, const char *name)
{
    struct fix *x = ctx;
    assert_int_equal(tag, 42);
    assert_int_equal(kind, SNIFF_HTTP);
    (void)snprintf(x->name, sizeof(x->name), "%s", name);
    return x->allow_name;
}

static void on_ended(void *ctx, const struct net_flow_id *id, uint64_t tag,
                     const struct net_flow_end *e)
{
    struct fix *x = ctx;
    assert_int_equal(tag, 42);
    x->ended++;
    x->end = *e;
}

static const struct net_hooks hooks = {on_verdict, on_named, on_ended};

static int set_up_caps(void **state, unsigned caps)
{
    struct fix *x = test_calloc(1, sizeof(*x));
    x->host = -1;
    fl_init(&x->fl, caps);
    assert_int_equal(loop_init(&x->loop), 0);
    x->cfg = fl_config();
    x->cfg.max_tcp = MAX;
    assert_int_equal(net_new(&x->net, &x->loop, &x->fl.link, &x->cfg, &hooks, x), 0);
    assert_int_equal(addr_parse("93.184.216.34", &x->peer), 0);
    *state = x;
    return 0;
}

static int set_up(void **state)
{
    return set_up_caps(state, CAPS);
}
static int set_up_plain(void **state)
{
    return set_up_caps(state, 0);
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    fl_drop_all(&x->fl);
    net_free(x->net);
    close_fd(&x->host);
    loop_fini(&x->loop);
    test_free(x);
    return 0;
}

/* --- the guest ------------------------------------------------------------------------------- */

static void send_seg(struct fix *x, const struct fl_seg *s)
{
    fl_tcp(&x->fl, &x->cfg.guest4, &x->peer, s);
    fl_input_end(&x->fl);
}

static void seg(struct fix *x, uint8_t flags, const void *data, size_t len)
{
    struct fl_seg s = {.sport = GPORT,
                       .dport = PORT_LOCAL,
                       .seq = x->seq,
                       .ack = x->ack,
                       .flags = flags,
                       .window = 1024,
                       .data = data,
                       .len = len};
    send_seg(x, &s);
}

static void syn(struct fix *x, uint16_t sport, uint16_t dport)
{
    struct fl_seg s = {.sport = sport,
                       .dport = dport,
                       .seq = ISS,
                       .flags = SEG_SYN,
                       .window = 65000,
                       .options = true};
    send_seg(x, &s);
}

struct got {
    uint8_t flags;
    uint32_t seq, ack;
    uint32_t window;
    size_t len;
    const uint8_t *data;
    struct link_offload off;
    size_t frame_len;
};

/* What the stack has sent; valid until the next call. */
static bool next(struct fix *x, struct got *g)
{
    if (x->looked_at)
        fl_done(&x->fl);
    x->looked_at = false;
    struct fl_frame *f = fl_next(&x->fl);
    if (!f)
        return false;
    x->looked_at = true;
    const uint8_t *t = f->p + LINK_ETH + 20;
    assert_int_equal(f->p[LINK_ETH + 9], PROTO_TCP);
    assert_int_equal(csum_finish(csum_add(0, f->p + LINK_ETH, 20)), 0);
    size_t tl = (size_t)(t[12] >> 4) * 4;
    *g = (struct got){.flags = t[13],
                      .seq = be32(t + 4),
                      .ack = be32(t + 8),
                      .window = be16(t + 14),
                      .data = t + tl,
                      .off = f->off,
                      .frame_len = f->len,
                      .len = be16(f->p + LINK_ETH + 2) - 20U - tl};
    assert_int_equal(f->len, LINK_ETH + be16(f->p + LINK_ETH + 2));
    return true;
}

static struct got expect(struct fix *x, uint8_t flags)
{
    struct got g;
    assert_true(next(x, &g));
    assert_int_equal(g.flags, flags);
    return g;
}

static void expect_none(struct fix *x)
{
    struct got g;
    assert_false(next(x, &g));
}

static void turn(struct fix *x)
{
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void open_flow(struct fix *x, uint16_t dport)
{
    syn(x, GPORT, dport);
    struct got g = expect(x, SEG_SYN | SEG_ACK);
    assert_int_equal(g.ack, ISS + 1);
    x->seq = ISS + 1;
    x->ack = g.seq + 1;
    expect_none(x);
}

static void establish(struct fix *x)
{
    open_flow(x, PORT_LOCAL);
    seg(x, SEG_ACK, NULL, 0);
    expect_none(x);
    assert_int_equal(net_stats(x->net)->tcp_flows, 1);
}

static size_t host_read(struct fix *x, void *p, size_t n)
{
    ssize_t k = recv(x->host, p, n, MSG_DONTWAIT);
    return k < 0 ? 0 : (size_t)k;
}

/* --- a guest that behaves -------------------------------------------------------------------- */

static void test_open_talk_close(void **state)
{
    struct fix *x = *state;
    uint8_t buf[64];
    establish(x);
    seg(x, SEG_ACK | SEG_PSH, "hello", 5);
    x->seq += 5;
    assert_int_equal(expect(x, SEG_ACK).ack, x->seq);
    assert_int_equal(host_read(x, buf, sizeof(buf)), 5);
    assert_memory_equal(buf, "hello", 5);

    assert_int_equal(send(x->host, "answer", 6, 0), 6);
    turn(x);
    struct got g = expect(x, SEG_ACK | SEG_PSH);
    assert_int_equal(g.len, 6);
    assert_memory_equal(g.data, "answer", 6);
    assert_int_equal(g.seq, x->ack);
    x->ack += 6;
    seg(x, SEG_ACK, NULL, 0);

    seg(x, SEG_ACK | SEG_FIN, NULL, 0); /* the guest finishes */
    x->seq++;
    assert_int_equal(expect(x, SEG_ACK).ack, x->seq);
    assert_int_equal(recv(x->host, buf, sizeof(buf), MSG_DONTWAIT), 0);
    assert_int_equal(send(x->host, "more", 4, 0), 4); /* and still hears */
    turn(x);
    assert_int_equal(expect(x, SEG_ACK | SEG_PSH).len, 4);
    x->ack += 4;
    close_fd(&x->host);
    turn(x);
    assert_int_equal(expect(x, SEG_ACK | SEG_FIN).seq, x->ack);
    x->ack++;
    assert_int_equal(net_stats(x->net)->tcp_flows, 1);
    seg(x, SEG_ACK, NULL, 0);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(net_stats(x->net)->held, 0);
    assert_int_equal(x->ended, 1);
    assert_int_equal(x->end.to_host, 5);
    assert_true(x->end.ns > 0);
    assert_int_equal(x->end.to_guest, 10);
    expect_none(x);
}

static void test_large_segments(void **state)
{
    struct fix *x = *state;
    static uint8_t data[100000];
    establish(x);
    assert_int_equal(send(x->host, data, sizeof(data), 0), sizeof(data));
    turn(x);
    size_t total = 0;
    for (struct got g; next(x, &g); total += g.len) {
        if (g.len > 1460) {
            assert_int_equal(g.off.gso, LINK_GSO_TCP4);
            assert_int_equal(g.off.gso_size, 1460);
        }
        assert_true(g.off.csum);
    }
    assert_int_equal(total, sizeof(data));
}

static void test_small_segments_with_whole_sums(void **state)
{
    struct fix *x = *state;
    static uint8_t data[10001];
    memset(data, 0x5a, sizeof(data));
    establish(x);
    assert_int_equal(send(x->host, data, sizeof(data), 0), sizeof(data));
    turn(x);
    size_t total = 0;
    for (struct got g; next(x, &g); total += g.len) {
        struct fl_frame *f = fl_must_next(&x->fl);
        assert_true(g.len <= 1460);
        assert_false(g.off.csum);
        uint64_t sum = csum_pseudo(&x->peer, &x->cfg.guest4, PROTO_TCP, (uint32_t)f->len - 34);
        assert_int_equal(csum_finish(csum_add(sum, f->p + 34, f->len - 34)), 0);
    }
    assert_int_equal(total, sizeof(data));
}

static void test_window_of_the_guest_is_kept(void **state)
{
    struct fix *x = *state;
    static uint8_t data[5000];
    establish(x);
    struct fl_seg s = {.sport = GPORT,
                       .dport = PORT_LOCAL,
                       .seq = x->seq,
                       .ack = x->ack,
                       .flags = SEG_ACK,
                       .window = 0};
    send_seg(x, &s);
    assert_int_equal(send(x->host, data, sizeof(data), 0), sizeof(data));
    turn(x);
    expect_none(x);
    s.window = 2000 >> 7; /* scaled: 1920 */
    send_seg(x, &s);
    assert_int_equal(expect(x, SEG_ACK).len, 1920);
    expect_none(x);
    s.ack += 1920;
    s.window = 1024;
    send_seg(x, &s);
    assert_int_equal(expect(x, SEG_ACK | SEG_PSH).len, 5000 - 1920);
}

static void test_lost_segments_are_sent_again(void **state)
{
    struct fix *x = *state;
    establish(x);
    assert_int_equal(send(x->host, "one", 3, 0), 3);
    turn(x);
    (void)expect(x, SEG_ACK | SEG_PSH);
    assert_int_equal(send(x->host, "two", 3, 0), 3);
    turn(x);
    (void)expect(x, SEG_ACK | SEG_PSH);
    for (unsigned i = 0; i < 4; i++)
        seg(x, SEG_ACK, NULL, 0); /* it has seen neither */
    struct got g = expect(x, SEG_ACK);
    assert_int_equal(g.seq, x->ack);
    assert_int_equal(g.len, 6);
    assert_memory_equal(g.data, "onetwo", 6);
    assert_int_equal(net_stats(x->net)->resent, 1);
    x->ack += 6;
    seg(x, SEG_ACK, NULL, 0);
    expect_none(x);
    assert_int_equal(net_stats(x->net)->held, 0);
}

/* Opens a flow to a real socket on the loopback, whose other end becomes x->host. */
static void dial(struct fix *x, int listener)
{
    struct sockaddr_storage s;
    socklen_t n = sizeof(s);
    struct got g;
    assert_int_equal(getsockname(listener, (struct sockaddr *)&s, &n), 0);
    assert_true(end_from_sockaddr(&s, &x->dial));
    syn(x, GPORT, PORT_DIAL);
    bool answered = next(x, &g);
    for (unsigned i = 0; i < 100 && !answered; i++) {
        assert_int_equal(loop_turn(&x->loop, 10), 0);
        answered = next(x, &g);
    }
    assert_true(answered);
    assert_int_equal(g.flags, SEG_SYN | SEG_ACK);
    x->seq = ISS + 1;
    x->ack = g.seq + 1;
    x->host = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(x->host >= 0);
}

static void dial_seg(struct fix *x, uint8_t flags)
{
    struct fl_seg s = {.sport = GPORT,
                       .dport = PORT_DIAL,
                       .seq = x->seq,
                       .ack = x->ack,
                       .flags = flags,
                       .window = 1024};
    send_seg(x, &s);
}

/* The same as above, with bytes that stay in the host's socket (where the kernel can). */
static void test_lost_segments_of_a_real_socket(void **state)
{
    struct fix *x = *state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    AUTO_CLOSE int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    dial(x, listener);
    dial_seg(x, SEG_ACK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(send(x->host, i ? "two" : "one", 3, 0), 3);
        struct got g;
        bool got = false;
        for (unsigned k = 0; k < 100 && !got; k++) {
            assert_int_equal(loop_turn(&x->loop, 10), 0);
            got = next(x, &g);
        }
        assert_true(got);
        assert_int_equal(g.len, 3);
    }
    x->ack += 2; /* it has seen two bytes, and keeps saying so */
    for (unsigned i = 0; i < 4; i++)
        dial_seg(x, SEG_ACK);
    struct got g = expect(x, SEG_ACK | SEG_PSH);
    assert_int_equal(g.seq, x->ack);
    assert_int_equal(g.len, 4);
    assert_memory_equal(g.data, "etwo", 4);
    x->ack += 4;
    dial_seg(x, SEG_ACK);
    expect_none(x);
    close_fd(&x->host);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    assert_int_equal(expect(x, SEG_FIN | SEG_ACK).seq, x->ack);
    x->ack++;
    dial_seg(x, SEG_ACK | SEG_FIN);
    (void)expect(x, SEG_ACK);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(net_stats(x->net)->held, 0);
}

static void test_host_that_does_not_read(void **state)
{
    struct fix *x = *state;
    static uint8_t data[60000], sink[1 << 20];
    establish(x);
    size_t sent = 0;
    uint32_t window = 65535;
    for (unsigned i = 0; i < 200; i++) {
        size_t k = MIN(sizeof(data), window);
        seg(x, SEG_ACK, data, k);
        struct got g = expect(x, SEG_ACK);
        x->seq = g.ack;
        sent += k;
        window = g.window << 8;
        if (window == 0)
            break;
    }
    assert_int_equal(window, 0);
    assert_true(net_stats(x->net)->held <= NET_HELD_FLOW_MAX);
    assert_true(net_stats(x->net)->held > NET_HELD_FLOW_MAX / 2);
    seg(x, SEG_ACK, "x", 1); /* beyond the window */
    assert_int_equal(expect(x, SEG_ACK).ack, x->seq);
    size_t got = 0;
    for (unsigned i = 0; i < 200; i++) {
        got += host_read(x, sink, sizeof(sink));
        turn(x);
    }
    struct got g = {0}, last = {0};
    while (next(x, &g))
        last = g;
    assert_true(last.window << 8 >= NET_HELD_FLOW_MAX / 2); /* it was told */
    assert_int_equal(got, sent - (sent - got));
    assert_int_equal(net_stats(x->net)->held, 0);
    assert_int_equal((uint32_t)got, x->seq - (ISS + 1));
}

static void test_no_room_at_the_guest(void **state)
{
    struct fix *x = *state;
    x->fl.full = true;
    syn(x, GPORT, PORT_LOCAL);
    expect_none(x);
    turn(x);
    assert_int_equal(net_stats(x->net)->tcp_flows, 1);
    x->fl.full = false;
    x->fl.link.user->room(x->fl.link.ctx);
    (void)expect(x, SEG_SYN | SEG_ACK);
}

static void test_first_bytes_are_looked_at(void **state)
{
    struct fix *x = *state;
    static const char head[] = "GET / HTTP/1.1\r\nHost: Example.COM:443\r\n", tail[] = "\r\nbody";
    uint8_t buf[256];
    for (unsigned allow = 0; allow < 2; allow++) {
        x->allow_name = allow;
        open_flow(x, PORT_SNIFF);
        struct fl_seg s = {.sport = GPORT,
                           .dport = PORT_SNIFF,
                           .seq = x->seq,
                           .ack = x->ack,
                           .flags = SEG_ACK,
                           .window = 1024,
                           .data = head,
                           .len = sizeof(head) - 1};
        send_seg(x, &s);
        (void)expect(x, SEG_ACK);
        assert_int_equal(host_read(x, buf, sizeof(buf)), 0); /* held back */
        s.seq += (uint32_t)s.len;
        s.data = tail;
        s.len = sizeof(tail) - 1;
        send_seg(x, &s);
        assert_string_equal(x->name, "example.com");
        if (allow) {
            (void)expect(x, SEG_ACK);
            assert_int_equal(host_read(x, buf, sizeof(buf)), sizeof(head) + sizeof(tail) - 2);
        } else {
            (void)expect(x, SEG_RST | SEG_ACK);
            assert_int_equal(recv(x->host, buf, sizeof(buf), MSG_DONTWAIT), 0); /* nothing at all */
            assert_int_equal(net_stats(x->net)->tcp_flows, 0);
        }
    }
}

/* --- refusals -------------------------------------------------------------------------------- */

static void test_denied_is_reset(void **state)
{
    struct fix *x = *state;
    syn(x, GPORT, PORT_DENIED);
    struct got g = expect(x, SEG_RST | SEG_ACK);
    assert_int_equal(g.ack, ISS + 1);
    assert_int_equal(net_stats(x->net)->tcp_denied, 1);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(x->ended, 0);
}

static void test_flood_of_syns(void **state)
{
    struct fix *x = *state;
    unsigned reset = 0, answered = 0;
    for (uint16_t i = 0; i < 1000; i++)
        syn(x, (uint16_t)(1000 + i), PORT_LOCAL);
    for (struct got g; next(x, &g);) {
        reset += (g.flags & SEG_RST) != 0;
        answered += (g.flags & SEG_SYN) != 0;
    }
    assert_int_equal(answered, MAX);
    assert_int_equal(reset, 1000 - MAX);
    assert_int_equal(net_stats(x->net)->tcp_refused, 1000 - MAX);
    assert_int_equal(net_stats(x->net)->tcp_flows, MAX);
}

static void test_strangers_are_reset(void **state)
{
    struct fix *x = *state;
    x->seq = 5;
    x->ack = 77;
    seg(x, SEG_ACK, "x", 1);
    assert_int_equal(expect(x, SEG_RST).seq, 77);
    seg(x, SEG_FIN, NULL, 0);
    assert_int_equal(expect(x, SEG_RST | SEG_ACK).ack, 6);
    seg(x, SEG_RST, NULL, 0);
    seg(x, SEG_SYN | SEG_FIN, NULL, 0);
    (void)expect(x, SEG_RST | SEG_ACK);
    expect_none(x);
    assert_int_equal(x->verdicts, 0);
}

/* --- a guest that does not behave ------------------------------------------------------------ */

static void test_out_of_order_and_overlaps(void **state)
{
    struct fix *x = *state;
    uint8_t buf[64];
    establish(x);
    uint32_t start = x->seq;
    x->seq = start + 3;
    seg(x, SEG_ACK, "def", 3); /* too early */
    assert_int_equal(expect(x, SEG_ACK).ack, start);
    x->seq = start;
    seg(x, SEG_ACK, "abc", 3);
    assert_int_equal(expect(x, SEG_ACK).ack, start + 3);
    seg(x, SEG_ACK, "abcdef", 6); /* half of it is old */
    assert_int_equal(expect(x, SEG_ACK).ack, start + 6);
    seg(x, SEG_ACK, "xyz", 3); /* all of it */
    assert_int_equal(expect(x, SEG_ACK).ack, start + 6);
    x->seq = start + 5;
    seg(x, SEG_ACK, NULL, 0); /* a keep-alive */
    assert_int_equal(expect(x, SEG_ACK).ack, start + 6);
    x->seq = start + 4;
    seg(x, SEG_ACK | SEG_FIN | SEG_URG, "yzg", 3);
    assert_int_equal(expect(x, SEG_ACK).ack, start + 8);
    seg(x, SEG_ACK | SEG_FIN, "yzghi", 5); /* after the end */
    assert_int_equal(expect(x, SEG_ACK).ack, start + 8);
    assert_int_equal(host_read(x, buf, sizeof(buf)), 7);
    assert_memory_equal(buf, "abcdefg", 7);
}

static void test_acks_of_nothing(void **state)
{
    struct fix *x = *state;
    establish(x);
    uint32_t good = x->ack;
    x->ack = good + 100;
    seg(x, SEG_ACK, "evil", 4);
    assert_int_equal(expect(x, SEG_ACK).ack, x->seq); /* and the data was not taken */
    x->ack = good - 100;
    seg(x, SEG_ACK, NULL, 0);
    expect_none(x);
    assert_int_equal(net_stats(x->net)->bogus_acks, 1);
    x->ack = good;
    seg(x, SEG_ACK, "fine", 4);
    assert_int_equal(expect(x, SEG_ACK).ack, x->seq + 4);
}

static void test_wrong_ack_of_our_syn(void **state)
{
    struct fix *x = *state;
    open_flow(x, PORT_LOCAL);
    x->ack += 5;
    seg(x, SEG_ACK, "data", 4);
    (void)expect(x, SEG_RST);
    expect_none(x);
    uint8_t buf[8];
    assert_int_equal(host_read(x, buf, sizeof(buf)), 0);
}

static void test_resets_in_and_out_of_the_window(void **state)
{
    struct fix *x = *state;
    establish(x);
    uint32_t good = x->seq;
    x->seq = good - 1;
    seg(x, SEG_RST, NULL, 0);
    x->seq = good + (16U << 20);
    seg(x, SEG_RST, NULL, 0);
    assert_int_equal(net_stats(x->net)->tcp_flows, 1);
    x->seq = good;
    seg(x, SEG_RST, NULL, 0);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(x->ended, 1);
    expect_none(x);
}

static void test_spoofed_frames(void **state)
{
    struct fix *x = *state;
    struct net_addr other;
    uint8_t f[64] = {0};
    (void)addr_parse("10.0.2.16", &other);
    struct fl_seg s = {.sport = 1, .dport = PORT_LOCAL, .flags = SEG_SYN, .window = 1};
    fl_tcp(&x->fl, &other, &x->peer, &s);
    size_t n = fl_ip(f, &x->cfg.guest4, &x->peer, PROTO_UDP, 8);
    f[6] ^= 4; /* another card */
    put16(f + n, 1);
    put16(f + n + 2, 1);
    put16(f + n + 4, 8);
    fl_input(&x->fl, f, n + 8);
    fl_input_end(&x->fl);
    assert_int_equal(net_stats(x->net)->dropped[PACKET_SPOOFED], 2);
    assert_int_equal(x->verdicts, 0);
    assert_null(fl_next(&x->fl));
}

static void test_driver_reset_ends_all(void **state)
{
    struct fix *x = *state;
    establish(x);
    x->fl.link.user->reset(x->fl.link.ctx);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(x->ended, 1);
}

static bool cut_all(void *arg, const struct net_flow_id *id, uint64_t tag, const char *name,
                    bool shown)
{
    return tag == 42 && strcmp(name, "a.b") == 0 && !shown && id->proto == PROTO_TCP;
}

static void test_cut(void **state)
{
    struct fix *x = *state;
    establish(x);
    assert_int_equal(net_cut(x->net, cut_all, NULL), 1);
    turn(x);
    (void)expect(x, SEG_RST | SEG_ACK);
    assert_int_equal(net_stats(x->net)->tcp_flows, 0);
    assert_int_equal(x->ended, 1);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_open_talk_close),
        T(test_large_segments),
        cmocka_unit_test_setup_teardown(test_small_segments_with_whole_sums, set_up_plain,
                                        tear_down),
        T(test_window_of_the_guest_is_kept),
        T(test_lost_segments_are_sent_again),
        T(test_lost_segments_of_a_real_socket),
        T(test_host_that_does_not_read),
        T(test_no_room_at_the_guest),
        T(test_first_bytes_are_looked_at),
        T(test_denied_is_reset),
        T(test_flood_of_syns),
        T(test_strangers_are_reset),
        T(test_out_of_order_and_overlaps),
        T(test_acks_of_nothing),
        T(test_wrong_ack_of_our_syn),
        T(test_resets_in_and_out_of_the_window),
        T(test_spoofed_frames),
        T(test_driver_reset_ends_all),
        T(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
