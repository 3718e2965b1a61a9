/* The stack's core: flows in general, work in turns, frames in.
 *
 * How work is done: events (frames, sockets, timers) only note on a flow what there is to do and
 * put it on n->work. Once a turn's events have been handled, the list is served round robin, one
 * large segment per flow at a time, so no flow starves another. If the guest has no receive
 * buffers, the remaining flows move to n->blocked until it has.
 *
 * A flow that ends leaves all lists at once, but its memory stays until the end of the turn, so no
 * caller up the stack holds a dangling pointer.
 */
#include "net/net_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "util/cleanup.h"

/* #syscalls:net getrandom close setsockopt socket */

enum {
    WORK_BYTES = 4 << 20, /* to the guest in one turn, before sockets are checked again */
    TICK_FAST_MS = 250,
    TICK_SLOW_MS = 5000,
};

#define MS(n) ((uint64_t)(n)*1000000ULL)

/* --- random numbers and the hash ------------------------------------------------------------- */

void net_random(struct net *n, void *p, size_t len)
{
    if (n->random_left < len) {
        /* Never short for up to 256 bytes; on failure, old numbers are better than none. */
        (void)!getrandom(n->random, sizeof(n->random), 0);
        n->random_left = sizeof(n->random);
    }
    memcpy(p, n->random + sizeof(n->random) - n->random_left, len);
    n->random_left -= (unsigned)len;
}

static uint64_t rotl(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

/* SipHash with one round for each word and three at the end; the guest cannot aim at a bucket. */
static struct flow **bucket(struct net *n, const struct net_flow_id *id)
{
    uint64_t word[3], v[4] = {n->key[0] ^ 0x736f6d6570736575ULL, n->key[1] ^ 0x646f72616e646f6dULL,
                              n->key[0] ^ 0x6c7967656e657261ULL, n->key[1] ^ 0x7465646279746573ULL};
    memcpy(word, id->peer.addr.b, 16);
    /* The guest's address follows from the family; inbound flows are found like others. */
    word[2] = (uint64_t)id->proto << 32 | (uint64_t)id->guest.port << 16 | id->peer.port;
    for (unsigned i = 0; i < ARRAY_LEN(word); i++) {
        v[3] ^= word[i];
        sip_round(v);
        v[0] ^= word[i];
    }
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 3; i++)
        sip_round(v);
    return &n->hash[(v[0] ^ v[1] ^ v[2] ^ v[3]) & (HASH_BUCKETS - 1)];
}

/* --- flows ----------------------------------------------------------------------------------- */

struct flow *flow_find(struct net *n, const struct net_flow_id *id)
{
    struct flow *f = *bucket(n, id);
    while (f && (f->id.proto != id->proto || !end_equal(&f->id.peer, &id->peer) ||
                 !end_equal(&f->id.guest, &id->guest)))
        f = f->chain;
    return f;
}

static void arm_tick(struct net *n, unsigned ms)
{
    loop_timer_by(n->loop, &n->tick_timer, MS(ms));
}

void net_tick_soon(struct net *n)
{
    if (n->slow) {
        n->slow = false;
        arm_tick(n, TICK_FAST_MS);
    }
}

void flow_insert(struct flow *f, struct node *list)
{
    struct net *n = f->net;
    struct flow **b = bucket(n, &f->id);
    f->chain = *b;
    *b = f;
    node_init(&f->all);
    node_init(&f->work);
    node_init(&f->turn[DIR_OUT].node);
    node_init(&f->turn[DIR_IN].node);
    node_append(list, &f->all);
    f->began_ns = now_ns();
    *(f->id.proto == PROTO_TCP ? &n->stats.tcp_flows : &n->stats.udp_flows) += 1;
    n->slow = true;
    net_tick_soon(n);
}

void flow_allow(struct flow *f, const struct net_verdict *v)
{
    f->allowed = true;
    f->tag = v->tag;
    (void)snprintf(f->name, sizeof(f->name), "%s", v->name ? v->name : "");
}

void flow_tell_end(struct flow *f, const char *how)
{
    struct net *n = f->net;
    if (f->allowed && n->hooks->ended) {
        struct net_flow_end e = {.to_host = f->to_host,
                                 .to_guest = f->to_guest,
                                 .ns = now_ns() - f->began_ns,
                                 .how = how};
        n->hooks->ended(n->ctx, &f->id, f->tag, &e);
    }
    f->allowed = false;
}

void flow_remove(struct flow *f, const char *how)
{
    struct net *n = f->net;
    if (f->dead)
        return;
    struct flow **p = bucket(n, &f->id);
    while (*p != f)
        p = &(*p)->chain;
    *p = f->chain;
    node_unlink(&f->all);
    node_unlink(&f->work);
    node_unlink(&f->turn[DIR_OUT].node);
    node_unlink(&f->turn[DIR_IN].node);
    unsigned *flows = f->id.proto == PROTO_TCP ? &n->stats.tcp_flows : &n->stats.udp_flows;
    assert(*flows > 0);
    *flows -= 1;
    loop_close(n->loop, &f->src);
    f->dead = true;
    f->chain = n->dead;
    n->dead = f;
    if (!n->working && n->work_timer.at_ns == 0)
        loop_timer_set(n->loop, &n->work_timer, 0);
    flow_tell_end(f, how);
}

static void bury(struct net *n)
{
    assert(!n->working);
    while (n->dead) {
        struct flow *f = n->dead;
        n->dead = f->chain;
        if (f->id.proto == PROTO_TCP) {
            size_t held = buf_len(&tcp_of(f)->held) + buf_len(&tcp_of(f)->kept);
            assert(n->stats.held >= held);
            n->stats.held -= held;
            buf_free(&tcp_of(f)->held);
            buf_free(&tcp_of(f)->kept);
            tcp_proxy_end(tcp_of(f));
        }
        free(f);
    }
}

void flow_work(struct flow *f)
{
    struct net *n = f->net;
    if (f->dead || node_linked(&f->work))
        return;
    node_append(&n->work, &f->work);
    if (!n->working && n->work_timer.at_ns == 0)
        loop_timer_set(n->loop, &n->work_timer, 0);
}

/* One visit; true if the flow wants another. False with the flow in n->blocked if it waits. */
static bool visit(struct flow *f)
{
    if (f->id.proto == PROTO_TCP)
        return tcp_work(tcp_of(f));
    udp_work(udp_of(f));
    return false;
}

static void work(struct net *n)
{
    size_t budget = WORK_BYTES;
    assert(!n->working);
    n->working = true;
    loop_timer_off(n->loop, &n->work_timer);
    while (node_linked(&n->work) && budget > 0) {
        struct flow *f = CONTAINER_OF(n->work.next, struct flow, work);
        uint64_t sent = f->to_guest;
        node_unlink(&f->work);
        if (visit(f) && !f->dead && !node_linked(&f->work))
            node_append(&n->work, &f->work);
        sent = f->to_guest - sent;
        budget -= MIN(budget, sent + 256);
    }
    n->working = false;
    bury(n);
    n->link->ops->flush(n->link);
    if (node_linked(&n->work))
        loop_timer_set(n->loop, &n->work_timer, 0);
}

static void on_work(struct loop_timer *t)
{
    work(CONTAINER_OF(t, struct net, work_timer));
}

static void on_tick(struct loop_timer *t)
{
    struct net *n = CONTAINER_OF(t, struct net, tick_timer);
    uint64_t now = now_ns();
    bool fast = false;
    tcp_tick(n, now);
    udp_tick(n, now);
    for (struct node *p = n->tcp_all.next; p != &n->tcp_all && !fast; p = p->next)
        fast = tcp_needs_tick(tcp_of(CONTAINER_OF(p, struct flow, all)));
    n->slow = !fast;
    if (n->stats.tcp_flows + n->stats.udp_flows > 0)
        arm_tick(n, fast ? TICK_FAST_MS : TICK_SLOW_MS);
}

/* --- frames from the guest ------------------------------------------------------------------- */

static bool from_guest(const struct net *n, const struct packet *p)
{
    if (memcmp(p->src_mac, n->cfg.guest_mac, 6) != 0)
        return false;
    if (p->ethertype == ETHERTYPE_V4)
        return addr_equal(&p->src, &n->cfg.guest4);
    if (p->ethertype != ETHERTYPE_V6)
        return true;
    if (!n->has6)
        return false;
    /* Neighbor discovery also comes from link-local and unspecified addresses; and packets to a
     * link-local address come from one. */
    static const struct net_addr unspecified;
    bool local = net_link_local(&p->src);
    return addr_equal(&p->src, &n->cfg.guest6) || (local && net_link_local(&p->dst)) ||
           (p->proto == PROTO_ICMP6 && (local || addr_equal(&p->src, &unspecified)));
}

static void input_packet(struct net *n, const struct packet *p)
{
    switch (p->proto) {
    case PROTO_TCP:
        tcp_input(n, p);
        break;
    case PROTO_UDP:
        udp_input(n, p);
        break;
    default:
        icmp_input(n, p);
        break;
    }
}

static void on_input(void *ctx, const struct link_offload *o, const struct iovec *iov,
                     unsigned n_iov, size_t len)
{
    struct net *n = ctx;
    struct packet *p = &n->packet;
    enum packet_fault fault = packet_parse(p, o, iov, n_iov, len);
    bool for_us = (p->dst_mac[0] & 1) || memcmp(p->dst_mac, n->cfg.gateway_mac, 6) == 0;
    if (fault == PACKET_OK && !from_guest(n, p))
        fault = PACKET_SPOOFED;
    else if (fault == PACKET_OK && !for_us)
        fault = PACKET_TYPE;
    if (fault != PACKET_OK) {
        n->stats.dropped[fault]++;
        return;
    }
    if (p->ethertype == ETHERTYPE_ARP_) {
        arp_input(n, p);
        return;
    }
    if (p->fragment) {
        struct packet whole;
        if (frag_add(n->frags, p, now_ns(), &whole, &fault))
            input_packet(n, &whole);
        else
            n->stats.dropped[fault] += fault != PACKET_OK;
        return;
    }
    input_packet(n, p);
}

static void on_input_end(void *ctx)
{
    struct net *n = ctx;
    work(n);
}

/* The guest has receive buffers again. */
static void on_room(void *ctx)
{
    struct net *n = ctx;
    while (node_linked(&n->blocked)) {
        struct node *p = n->blocked.next;
        node_unlink(p);
        node_append(&n->work, p);
    }
    work(n);
}

static void drop_flows(struct net *n, const char *how)
{
    struct node *lists[] = {&n->tcp_all, &n->udp_all};
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++)
        while (node_linked(lists[i]))
            flow_remove(CONTAINER_OF(lists[i]->next, struct flow, all), how);
}

static void on_reset(void *ctx)
{
    struct net *n = ctx;
    drop_flows(n, "the guest's network card was reset");
    frag_reset(n->frags);
    bury(n);
}

static const struct link_user link_user = {on_input, on_input_end, on_room, on_reset};

/* --- the owner's side ------------------------------------------------------------------------ */

/* Since Linux 6.9 a TCP socket can be read without being emptied, at a separate offset. */
static bool probe_peek_off(void)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int zero = 0;
    return fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)) == 0;
}

int net_new(struct net **ret, struct loop *l, struct link *link, const struct net_config *c,
            const struct net_hooks *hooks, void *ctx)
{
    static const struct net_addr none;
    AUTO_FREE struct net *n = calloc(1, sizeof(*n));
    if (!n || !(n->frags = frag_new()))
        return -ENOMEM;
    n->loop = l;
    n->link = link;
    n->cfg = *c;
    n->cfg.max_tcp = c->max_tcp ? c->max_tcp : NET_TCP_DEFAULT;
    n->cfg.max_udp = c->max_udp ? c->max_udp : NET_UDP_DEFAULT;
    n->hooks = hooks;
    n->ctx = ctx;
    n->has6 = !addr_equal(&c->guest6, &none);
    n->peek_off = !c->copies && probe_peek_off();
    node_init(&n->tcp_all);
    node_init(&n->udp_all);
    node_init(&n->work);
    node_init(&n->blocked);
    n->work_timer.fn = on_work;
    n->tick_timer.fn = on_tick;
    turns_init(n);
    for (unsigned i = 0; i < NET_PUBLISHED_MAX; i++)
        n->published[i].src.fd = -1;
    net_random(n, n->key, sizeof(n->key));
    net_random(n, &n->next_port, sizeof(n->next_port));
    link->user = &link_user;
    link->ctx = n;
    *ret = steal_ptr(&n);
    return 0;
}

void net_free(struct net *n)
{
    if (!n)
        return;
    drop_flows(n, "the sandbox ends");
    bury(n);
    for (int i = 0; i < NET_PUBLISHED_MAX; i++)
        (void)net_unpublish(n, i);
    loop_timer_off(n->loop, &n->work_timer);
    loop_timer_off(n->loop, &n->tick_timer);
    turns_stop(n);
    frag_free(n->frags);
    n->link->user = NULL;
    free(n);
}

const struct net_stats *net_stats(const struct net *n)
{
    return &n->stats;
}

/* Addresses that mean nothing, or something else, inside the guest are shown as the gateway. */
struct net_flow_id net_inbound_id(const struct published *pub, const struct net_end *peer)
{
    static const struct net_addr loopback6 = {.b = {[15] = 1}};
    const struct net *n = pub->net;
    const struct net_addr *a = &peer->addr;
    bool v4 = addr_is4(a);
    bool plain = v4 ? addr_bytes4(a)[0] != 127 && addr_bytes4(a)[0] != 0
                    : n->has6 && !addr_equal(a, &loopback6) && a->b[0] != 0xfe;
    plain = plain && !addr_equal(a, &n->cfg.guest4) && !addr_equal(a, &n->cfg.guest6);
    struct net_end seen = {.addr = plain ? *a : n->cfg.gateway4, .port = peer->port};
    return (struct net_flow_id){
        .proto = pub->proto,
        .inbound = true,
        .guest = {.addr = addr_is4(&seen.addr) ? n->cfg.guest4 : n->cfg.guest6,
                  .port = pub->guest_port},
        .peer = seen};
}

static void on_published(struct loop_src *src, uint32_t events)
{
    struct published *pub = CONTAINER_OF(src, struct published, src);
    if (pub->proto == PROTO_TCP)
        tcp_published(pub);
    else
        udp_published(pub);
}

int net_publish(struct net *n, uint8_t proto, int fd, uint16_t guest_port)
{
    for (int i = 0; i < NET_PUBLISHED_MAX; i++) {
        struct published *p = &n->published[i];
        if (p->src.fd >= 0)
            continue;
        *p = (struct published){.net = n,
                                .src = {.fd = fd, .fn = on_published},
                                .proto = proto,
                                .guest_port = guest_port};
        int r = loop_add(n->loop, &p->src, EPOLLIN);
        if (r < 0)
            p->src.fd = -1;
        return r < 0 ? r : i;
    }
    return -ENOSPC;
}

int net_unpublish(struct net *n, int handle)
{
    if (handle < 0 || handle >= NET_PUBLISHED_MAX || n->published[handle].src.fd < 0)
        return -ENOENT;
    struct published *p = &n->published[handle];
    struct node *next;
    for (struct node *at = n->udp_all.next; at != &n->udp_all; at = next) {
        next = at->next;
        struct flow *f = CONTAINER_OF(at, struct flow, all);
        if (udp_of(f)->pub == p)
            flow_remove(f, "no longer published");
    }
    loop_close(n->loop, &p->src);
    return 0;
}

unsigned net_cut(struct net *n,
                 bool (*which)(void *arg, const struct net_flow_id *id, uint64_t tag,
                               const char *name, bool shown),
                 void *arg)
{
    unsigned cut = 0;
    struct node *lists[] = {&n->tcp_all, &n->udp_all}, *next;
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++)
        for (struct node *at = lists[i]->next; at != lists[i]; at = next) {
            next = at->next;
            struct flow *f = CONTAINER_OF(at, struct flow, all);
            if (!which(arg, &f->id, f->tag, f->name, f->shown))
                continue;
            if (f->id.proto == PROTO_TCP)
                tcp_abort(tcp_of(f), "cut");
            else
                flow_remove(f, "cut");
            cut++;
        }
    return cut;
}
