/* The network stack: a guest that sends anything, mostly segments that fit a flow it has, and hosts
 * that read, write and close when the input says so. The host's ends are socket pairs. */
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/fake_link.h"
#include "fuzz_guest.h"

enum { HOSTS = 8, PORTS = 4 };

static struct fake_link fl;
static struct net *net;
static struct net_config cfg;
static int host[HOSTS];
static unsigned n_hosts, allowed, ended;
static int turn_ms;
static uint32_t guest_seq[PORTS], guest_ack[PORTS]; /* what fits, for each source port */

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    int pair[2];
    if (id->proto != PROTO_TCP || id->peer.port == 1 || n_hosts == HOSTS ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    v->action = NET_LOCAL;
    v->fd = pair[0];
    v->sniff = id->peer.port == 3;
    host[n_hosts++] = pair[1];
    allowed++;
}

static enum net_passage on_named(void *ctx, const struct net_flow_id *id, uint64_t tag,
                                 enum sniff_kind kind, const char *name)
{
    if (kind == SNIFF_MORE || strlen(name) >= SNIFF_NAME_MAX)
        abort();
    return name[0] != 'x';
}

static void on_ended(void *ctx, const struct net_flow_id *id, uint64_t tag,
                     const struct net_flow_end *e)
{
    if (!e->how || ++ended > allowed)
        abort();
}

static bool on_datagram(void *ctx, const struct net_flow_id *id, const void *p, size_t n)
{
    if (n > 0 && ((const uint8_t *)p)[n - 1] == 0)
        net_send_udp(net, &id->peer, &id->guest, p, n);
    return id->peer.port == 53;
}

static const struct net_hooks hooks = {on_verdict, on_named, on_ended, on_datagram};

/* Learns from what the stack has sent, so that the guest can go on. */
static void look(void)
{
    for (struct fl_frame *f; (f = fl_next(&fl)); fl_done(&fl)) {
        const uint8_t *t = f->p + LINK_ETH + 20;
        if (be16(f->p + 12) != ETHERTYPE_V4 || f->p[LINK_ETH + 9] != PROTO_TCP)
            continue;
        unsigned i = be16(t + 2) % PORTS;
        size_t len = f->len - LINK_ETH - 20 - (size_t)(t[12] >> 4) * 4;
        guest_ack[i] = be32(t + 4) + (uint32_t)len + !!(t[13] & SEG_SYN) + !!(t[13] & SEG_FIN);
        if (t[13] & SEG_ACK)
            guest_seq[i] = be32(t + 8);
    }
}

static void do_tcp(struct input *in)
{
    static uint8_t data[3000];
    uint8_t how = in_u8(in);
    unsigned i = how % PORTS;
    struct net_addr peer = cfg.gateway4;
    struct fl_seg s = {.sport = (uint16_t)(1000 + i),
                       .dport = in_u8(in) & 3,
                       .seq = guest_seq[i],
                       .ack = guest_ack[i],
                       .flags = how & 0x80 ? in_u8(in) & 63 : SEG_ACK,
                       .window = how & 0x40 ? in_u16(in) : 1000,
                       .data = data,
                       .options = how & 0x20};
    s.len = how & 0x10 ? in_u16(in) % sizeof(data) : in_u8(in);
    (void)in_bytes(in, data, s.len < 64 ? s.len : 64);
    if (how & 0x08)
        s.seq += (uint32_t)(int8_t)in_u8(in);
    if (how & 0x04)
        s.ack += (uint32_t)(int8_t)in_u8(in);
    fl_tcp(&fl, &cfg.guest4, &peer, &s);
}

static void do_raw(struct input *in)
{
    uint8_t f[400];
    size_t n = fl_ip(f, in_u8(in) & 1 ? &cfg.guest4 : &cfg.guest6, &cfg.guest6, in_u8(in), 100);
    uint8_t keep = in_u8(in); /* how much of a good header stays */
    size_t at = keep < n ? keep : n;
    size_t len = at + in_bytes(in, f + at, in_u8(in));
    fl_input(&fl, f, len);
}

static void do_host(struct input *in)
{
    static uint8_t bytes[70000];
    uint8_t how = in_u8(in);
    if (n_hosts == 0)
        return;
    int *fd = &host[(how >> 4) % n_hosts];
    if (*fd < 0)
        return;
    if ((how & 3) == 0)
        (void)!send(*fd, bytes, in_u16(in), MSG_DONTWAIT | MSG_NOSIGNAL);
    else if ((how & 3) == 1)
        (void)!recv(*fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    else if ((how & 3) == 2)
        (void)shutdown(*fd, how & 4 ? SHUT_WR : SHUT_RD);
    else
        close_fd(fd);
}

static void do_fragment(struct input *in)
{
    uint8_t f[400];
    size_t len = in_u8(in);
    size_t n = fl_ip(f, &cfg.guest4, &cfg.gateway4, in_u8(in) & 1 ? PROTO_UDP : PROTO_TCP, len);
    put16(f + LINK_ETH + 4, in_u8(in) & 3);
    put16(f + LINK_ETH + 6, in_u16(in) & 0x201f);
    memset(f + n, 0, len);
    (void)in_bytes(in, f + n, len);
    fl_input(&fl, f, n + len);
}

static void step(struct input *in, struct loop *l)
{
    switch (in_u8(in) % 12) {
    case 0:
    case 1:
    case 2:
        do_tcp(in);
        break;
    case 3:
        do_raw(in);
        break;
    case 4:
    case 5:
        do_host(in);
        break;
    case 6:
        do_fragment(in);
        break;
    case 7:
        fl.full = !fl.full;
        if (!fl.full)
            fl.link.user->room(fl.link.ctx);
        break;
    case 8:
        fl_input_end(&fl);
        break;
    case 9:
        look();
        break;
    case 10:
        if (in_u8(in) == 0)
            fl.link.user->reset(fl.link.ctx);
        break;
    default:
        (void)loop_turn(l, turn_ms);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.p = data, .n = size};
    struct loop l;
    n_hosts = allowed = ended = 0;
    cfg = fl_config();
    cfg.max_tcp = 4;
    cfg.max_udp = 4;
    const struct rate_limit tight = {.amount = 3000, .period_ms = RATE_PERIOD_MIN_MS};
    uint8_t how = in_u8(&in);
    fl_init(&fl, how & 15);
    cfg.egress.bytes = how & 16 ? tight : (struct rate_limit){0};
    cfg.ingress.bytes = how & 32 ? tight : (struct rate_limit){0};
    turn_ms = how & 64 ? 2 : 0; /* for flows that wait for their turn */
    if (loop_init(&l) < 0 || net_new(&net, &l, &fl.link, &cfg, &hooks, NULL) < 0)
        abort();
    while (in.n > 0) {
        step(&in, &l);
        if (net_stats(net)->tcp_flows > 4 || net_stats(net)->held > NET_HELD_MAX)
            abort();
    }
    fl.full = false;
    fl_input_end(&fl);
    net_free(net);
    if (ended != allowed)
        abort();
    fl_drop_all(&fl);
    for (unsigned i = 0; i < n_hosts; i++)
        close_fd(&host[i]);
    loop_fini(&l);
    return 0;
}
