/* TCP toward the guest: incoming segments, states, time.
 *
 * Between guest and stack nothing is lost, doubled or reordered, so a segment that does not start
 * at rcv_nxt is answered with an ACK and dropped, and there is no congestion control. But a guest
 * may drop what it was given (if out of memory, or by its own firewall), so what it has not
 * acknowledged can be resent, from the host's socket, which still has it (tcp_host.c).
 *
 * Invariants:
 *  1. The guest's connect succeeds only after the host's did: SYN-ACK is sent in TCP_ANSWERED.
 *  2. snd_una <= snd_nxt <= snd_max; an ACK outside [snd_una, snd_max] changes nothing.
 *  3. Bytes are only taken up to rcv_edge, so `held` has room for all that was promised; if all
 *     flows together hold too much, they are left with the guest, unacknowledged.
 *  4. rcv_edge never moves back.
 *  5. A flow ends at once when both sides have finished and know it; there is no TIME_WAIT.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "net/net_impl.h"
#include "util/cleanup.h"

/* #syscalls:net accept4 */

enum {
    RESEND_MS = 500, /* without progress, before the first resend; doubles */
    RESENDS_MAX = 10,
    HANDSHAKE_S = 30, /* for the guest's part of it */
    DUP_ACKS = 3,
    MSS_LEAST = 88,
    ACCEPTS_PER_EVENT = 32,
};

#define MS(n) ((uint64_t)(n)*1000000ULL)

static struct tcp_flow *tcp_flow_new(struct net *n, const struct net_flow_id *id)
{
    struct tcp_flow *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->f.net = n;
    t->f.id = *id;
    t->f.src.fd = -1;
    t->mss = addr_is4(&id->guest.addr) ? MSS4 : MSS6;
    buf_init(&t->held, NET_HELD_FLOW_MAX);
    buf_init(&t->kept, NET_HELD_FLOW_MAX);
    net_random(n, &t->snd_una, sizeof(t->snd_una));
    t->snd_nxt = t->snd_max = t->snd_una;
    t->released = t->snd_una + 1;
    t->since_ns = now_ns();
    flow_insert(&t->f, &n->tcp_all);
    return t;
}

/* Invariants 2 and 3 of an open flow. */
static void assert_sequence(const struct tcp_flow *t)
{
    assert(!seq_lt(t->snd_nxt, t->snd_una) && !seq_lt(t->snd_max, t->snd_nxt));
    assert(!seq_lt(t->rcv_edge, t->rcv_nxt) && !seq_lt(t->rcv_nxt, t->rcv_acked));
}

static void due(struct tcp_flow *t, unsigned what)
{
    t->due |= what;
    flow_work(&t->f);
}

void tcp_abort(struct tcp_flow *t, const char *how)
{
    if (t->f.dead || t->state == TCP_RESET)
        return;
    int fd = t->f.src.fd;
    if (fd >= 0) {
        struct linger hard = {.l_onoff = 1};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    if (t->state == TCP_DIALING) { /* the guest waits for an answer */
        t->snd_nxt = 0;
    }
    loop_close(t->f.net->loop, &t->f.src);
    t->state = TCP_RESET;
    flow_tell_end(&t->f, how);
    due(t, 0);
}

/* The guest has reset it: only the host has to be told. */
static void peer_reset(struct tcp_flow *t)
{
    struct linger hard = {.l_onoff = 1};
    if (t->f.src.fd >= 0)
        (void)setsockopt(t->f.src.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    flow_remove(&t->f, "reset by the guest");
}

static void check_end(struct tcp_flow *t)
{
    if (t->guest_fin && t->host_shut && t->host_eof && t->snd_una == t->fin_seq + 1 &&
        !(t->due & DUE_ACK))
        flow_remove(&t->f, "closed");
}

/* --- new flows ------------------------------------------------------------------------------- */

static void take_options(struct tcp_flow *t, const struct packet_tcp *h)
{
    if (h->mss != 0)
        t->mss = MAX(MIN(t->mss, h->mss), MSS_LEAST);
    t->scaled = h->wscale >= 0;
    t->snd_scale = t->scaled ? (uint8_t)h->wscale : 0;
    t->snd_wnd = h->window; /* never scaled in a SYN */
}

static void new_flow(struct net *n, const struct packet *p, const struct net_flow_id *id)
{
    if (n->stats.tcp_flows >= n->cfg.max_tcp) {
        n->stats.tcp_refused++;
        tcp_send_reset(n, p);
        return;
    }
    struct net_verdict v = {.action = NET_DENY, .to = id->peer, .fd = -1};
    n->hooks->verdict(n->ctx, id, &v);
    if (v.action == NET_DENY) {
        n->stats.tcp_denied++;
        tcp_send_reset(n, p);
        return;
    }
    struct tcp_flow *t = tcp_flow_new(n, id);
    if (!t) {
        if (v.action == NET_LOCAL)
            close_fd(&v.fd);
        tcp_send_reset(n, p);
        return;
    }
    n->stats.tcp_opened++;
    flow_charge(&t->f, DIR_OUT, 0, t->mss); /* a packet without bytes */
    flow_allow(&t->f, &v);
    t->sniffing = v.sniff;
    t->rcv_nxt = t->rcv_acked = t->rcv_edge = p->tcp.seq + 1;
    take_options(t, &p->tcp);
    tcp_dial(t, &v);
}

/* A connection to a published port: the guest is called. */
static void new_inbound(struct published *pub, int fd, const struct net_end *peer)
{
    struct net *n = pub->net;
    AUTO_CLOSE int own = fd;
    struct net_flow_id id = net_inbound_id(pub, peer);
    for (unsigned i = 0; flow_find(n, &id) && i < 64; i++)
        id.peer.port = (uint16_t)(n->next_port++ | 0x8000);
    if (n->stats.tcp_flows >= n->cfg.max_tcp || flow_find(n, &id)) {
        n->stats.tcp_refused++;
        return;
    }
    struct net_verdict v = {.action = NET_DENY, .to = id.guest, .fd = -1};
    n->hooks->verdict(n->ctx, &id, &v);
    if (v.action != NET_ALLOW) {
        n->stats.tcp_denied++;
        return;
    }
    struct tcp_flow *t = tcp_flow_new(n, &id);
    if (!t)
        return;
    n->stats.tcp_opened++;
    flow_allow(&t->f, &v);
    t->state = TCP_CALLING;
    t->scaled = true;
    if (tcp_watch(t, steal_fd(&own)) < 0)
        flow_remove(&t->f, "out of descriptors");
    else
        due(t, DUE_SYN);
}

void tcp_published(struct published *pub)
{
    for (unsigned i = 0; i < ACCEPTS_PER_EVENT && pub->src.fd >= 0; i++) {
        struct sockaddr_storage a;
        socklen_t alen = sizeof(a);
        struct net_end peer;
        int fd = accept4(pub->src.fd, (struct sockaddr *)&a, &alen, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (end_from_sockaddr(&a, &peer))
            new_inbound(pub, fd, &peer);
        else
            close_fd(&fd);
    }
}

/* --- segments for a flow --------------------------------------------------------------------- */

/* False: ignore the rest of the segment. */
static bool take_ack(struct tcp_flow *t, const struct packet *p)
{
    uint32_t ack = p->tcp.ack;
    uint32_t window = (uint32_t)p->tcp.window << t->snd_scale;
    if (seq_lt(t->snd_max, ack)) {
        t->f.net->stats.bogus_acks++;
        due(t, DUE_ACK);
        return false;
    }
    if (seq_lt(ack, t->snd_una))
        return true; /* outdated */
    if (ack != t->snd_una) {
        t->snd_una = ack;
        if (seq_lt(t->snd_nxt, ack))
            t->snd_nxt = ack;
        t->dup_acks = 0;
        t->tries = 0;
        t->since_ns = 0;
        t->due |= DUE_RELEASE;
    } else if (p->payload_len == 0 && window == t->snd_wnd && t->snd_max != t->snd_una &&
               !(p->tcp.flags & SEG_FIN)) {
        t->tries = 0; /* the guest is alive */
        if (++t->dup_acks == DUP_ACKS)
            t->due |= DUE_RESEND;
    }
    t->snd_wnd = window;
    due(t, DUE_PUMP);
    return true;
}

static void take_data(struct tcp_flow *t, const struct packet *p)
{
    size_t off = p->payload, len = p->payload_len;
    bool fin = p->tcp.flags & SEG_FIN;
    uint32_t seq = p->tcp.seq;
    if (seq != t->rcv_nxt) {
        uint32_t behind = t->rcv_nxt - seq;
        due(t, DUE_ACK); /* a probe, a repetition, or a gap: say where we are */
        if (seq_lt(t->rcv_nxt, seq)) {
            t->f.net->stats.out_of_order++;
            return;
        }
        if (behind >= len + fin)
            return;
        off += behind;
        len -= MIN(len, behind);
    }
    if (len == 0 && !fin)
        return;
    due(t, DUE_ACK);
    if (t->guest_fin)
        return;
    size_t room = t->rcv_edge - t->rcv_nxt;
    if (len > room) {
        len = room;
        fin = false;
    }
    uint32_t before = t->rcv_nxt;
    if (len > 0)
        tcp_accept_data(t, p, off, len);
    if (t->f.dead || t->state == TCP_RESET)
        return;
    if (fin && t->rcv_nxt - before == len) {
        t->rcv_nxt++;
        if (t->rcv_edge == t->rcv_nxt - 1)
            t->rcv_edge++;
        t->guest_fin = true;
        tcp_shut(t);
    }
}

static void open_input(struct tcp_flow *t, const struct packet *p)
{
    if (p->tcp.flags & SEG_SYN) {
        due(t, t->state == TCP_ANSWERED && p->tcp.seq + 1 == t->rcv_nxt ? DUE_SYN : DUE_ACK);
        return;
    }
    if (!(p->tcp.flags & SEG_ACK))
        return;
    if (t->state == TCP_ANSWERED) {
        if (p->tcp.ack != t->snd_una + 1 || t->snd_max == t->snd_una) { /* or it was guessed */
            t->f.net->stats.bogus_acks++;
            tcp_send_reset(t->f.net, p);
            return;
        }
        t->state = TCP_OPEN;
        t->due &= ~(unsigned)DUE_SYN;
    }
    if (take_ack(t, p))
        take_data(t, p);
    if (t->state == TCP_OPEN)
        assert_sequence(t);
}

/* The guest's answer to our SYN. */
static void called_input(struct tcp_flow *t, const struct packet *p)
{
    uint8_t want = SEG_SYN | SEG_ACK;
    if ((p->tcp.flags & want) != want || p->tcp.ack != t->snd_una + 1 || t->snd_max == t->snd_una) {
        tcp_send_reset(t->f.net, p);
        return;
    }
    take_options(t, &p->tcp);
    t->rcv_nxt = t->rcv_acked = t->rcv_edge = p->tcp.seq + 1;
    t->snd_una = t->snd_nxt = t->snd_max = p->tcp.ack;
    t->state = TCP_OPEN;
    t->since_ns = 0;
    t->tries = 0;
    t->readable = true;
    t->due &= ~(unsigned)DUE_SYN;
    due(t, DUE_ACK | DUE_PUMP);
}

static void reset_input(struct tcp_flow *t, const struct packet *p)
{
    bool answer = t->state == TCP_CALLING || t->state == TCP_DIALING;
    uint32_t off = p->tcp.seq - t->rcv_nxt;
    if (answer || off <= t->rcv_edge - t->rcv_nxt)
        peer_reset(t);
}

void tcp_input(struct net *n, const struct packet *p)
{
    struct net_flow_id id = {.proto = PROTO_TCP,
                             .guest = {.addr = p->src, .port = p->sport},
                             .peer = {.addr = p->dst, .port = p->dport}};
    struct flow *f = flow_find(n, &id);
    struct tcp_flow *t = f ? tcp_of(f) : NULL;
    if (!t) {
        uint8_t kind = p->tcp.flags & (SEG_SYN | SEG_ACK | SEG_RST | SEG_FIN);
        if (kind == SEG_SYN)
            new_flow(n, p, &id);
        else
            tcp_send_reset(n, p);
        return;
    }
    if (p->tcp.flags & SEG_RST) {
        reset_input(t, p);
        return;
    }
    switch (t->state) {
    case TCP_DIALING: /* a repeated SYN; the reply comes when the host's connect is done */
    case TCP_RESET:   /* on its way */
        break;
    case TCP_CALLING:
        called_input(t, p);
        break;
    default:
        open_input(t, p);
        break;
    }
}

/* --- work ------------------------------------------------------------------------------------ */

/* True if the frame is out; if not, the flow waits for room. */
static bool sent_or_blocked(struct tcp_flow *t, bool sent)
{
    if (!sent && !t->f.dead && !node_linked(&t->f.work))
        node_append(&t->f.net->blocked, &t->f.work);
    return sent;
}

static bool work_syn(struct tcp_flow *t)
{
    uint8_t flags = t->state == TCP_CALLING ? SEG_SYN : SEG_SYN | SEG_ACK;
    if (!sent_or_blocked(t, tcp_send(t, flags, t->snd_una)))
        return false;
    t->due &= ~(unsigned)DUE_SYN;
    t->snd_nxt = t->snd_max = t->snd_una + 1;
    return true;
}

bool tcp_work(struct tcp_flow *t)
{
    if (t->state == TCP_RESET) {
        if (sent_or_blocked(t, tcp_send(t, SEG_RST | SEG_ACK, t->snd_nxt)))
            flow_remove(&t->f, "reset");
        return false;
    }
    if ((t->due & DUE_SYN) && !work_syn(t))
        return false;
    if (t->state != TCP_OPEN)
        return false;
    if (t->due & DUE_RELEASE) {
        t->due &= ~(unsigned)DUE_RELEASE;
        tcp_release(t);
    }
    if (t->due & DUE_RESEND) {
        t->due &= ~(unsigned)DUE_RESEND;
        tcp_rewind(t);
    }
    enum pump r = PUMP_IDLE;
    if (t->due & DUE_PUMP) {
        r = tcp_pump(t);
        if (t->f.dead || t->state == TCP_RESET)
            return t->state == TCP_RESET && !t->f.dead;
        if (r == PUMP_IDLE)
            t->due &= ~(unsigned)DUE_PUMP;
    }
    if (r == PUMP_BLOCKED)
        return sent_or_blocked(t, false);
    if (t->due & DUE_PROBE) { /* an old byte: the reply tells where the guest is */
        if (!sent_or_blocked(t, tcp_send(t, SEG_ACK, t->snd_una - 1)))
            return false;
        t->due &= ~(unsigned)DUE_PROBE;
    }
    if ((t->due & DUE_ACK) && r == PUMP_IDLE &&
        !sent_or_blocked(t, tcp_send(t, SEG_ACK, t->snd_nxt)))
        return false;
    assert_sequence(t);
    check_end(t);
    return r == PUMP_MORE;
}

/* --- time ------------------------------------------------------------------------------------ */

bool tcp_needs_tick(const struct tcp_flow *t)
{
    return t->state != TCP_OPEN || t->snd_max != t->snd_una || t->again;
}

static void tick_handshake(struct tcp_flow *t, uint64_t now)
{
    if (now - t->since_ns > HANDSHAKE_S * MS(1000))
        tcp_abort(t, "the guest did not answer");
    else if (now - t->since_ns > (MS(1000) << t->tries)) {
        t->tries++;
        due(t, DUE_SYN);
    }
}

static void tick_open(struct tcp_flow *t, uint64_t now)
{
    if (t->snd_max == t->snd_una) {
        t->since_ns = 0;
        t->tries = 0;
        return;
    }
    if (t->since_ns == 0) {
        t->since_ns = now;
        return;
    }
    if (now - t->since_ns < (MS(RESEND_MS) << t->tries))
        return;
    if (++t->tries > RESENDS_MAX) {
        tcp_abort(t, "the guest does not acknowledge");
        return;
    }
    due(t, t->snd_wnd == 0 ? DUE_PROBE : DUE_RESEND | DUE_PUMP);
}

void tcp_tick(struct net *n, uint64_t now)
{
    struct node *next;
    for (struct node *at = n->tcp_all.next; at != &n->tcp_all; at = next) {
        next = at->next;
        struct flow *f = CONTAINER_OF(at, struct flow, all);
        struct tcp_flow *t = tcp_of(f);
        if (t->again && t->state == TCP_OPEN)
            tcp_look(t);
        if (node_linked(&f->work)) /* waits for room, or will be served anyway */
            continue;
        if (t->state == TCP_ANSWERED || t->state == TCP_CALLING)
            tick_handshake(t, now);
        else if (t->state == TCP_OPEN)
            tick_open(t, now);
        else
            tcp_proxy_tick(t, now);
    }
}
