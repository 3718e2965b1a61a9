/* Flows that wait because of a limit on bytes or packets (rate.h).
 *
 * Each direction has one queue. A flow that gets no grant goes to its end, and no flow passes one
 * that waits. When the buckets have been refilled, those in front get their turn, one grant each,
 * and a flow with more to move joins the end again: all flows get the same share, however many
 * bytes each has waiting. Nothing is polled; there is one timer per direction.
 */
#include <assert.h>

#include "net/net_impl.h"
#include "util/cleanup.h"

enum { WAIT_MIN_MS = 2, TURNS_MAX = 256 };

static void arm(struct net *n, struct net_rate *r)
{
    if (r->timer.at_ns == 0 && node_linked(&r->waiting))
        loop_timer_set(n->loop, &r->timer, MAX(rate_wait_ns(&r->rate), WAIT_MIN_MS * 1000000ULL));
}

size_t flow_grant(struct flow *f, enum net_dir dir, size_t want, size_t packet)
{
    struct net_rate *r = &f->net->rate[dir];
    assert(want > 0 && packet > 0 && !f->dead);
    if (!r->rate.limited)
        return want;
    bool called = f->turn[dir].called;
    if (node_linked(&f->turn[dir].node))
        return 0;
    size_t grant = 0;
    if (called || !node_linked(&r->waiting))
        grant = rate_grant(&r->rate, want, packet, now_ns());
    f->turn[dir].called = false;
    if (grant > 0)
        return grant;
    /* A flow that was called but comes too early keeps its place. */
    node_append(called ? r->waiting.next : &r->waiting, &f->turn[dir].node);
    arm(f->net, r);
    return 0;
}

void flow_charge(struct flow *f, enum net_dir dir, size_t bytes, size_t packet)
{
    rate_charge(&f->net->rate[dir].rate, bytes, MAX((bytes + packet - 1) / packet, (size_t)1));
}

static void call(struct flow *f, enum net_dir dir)
{
    f->turn[dir].called = true;
    if (dir == DIR_OUT) { /* a datagram that could not wait is lost; the next one passes */
        if (f->id.proto == PROTO_TCP)
            tcp_drain(tcp_of(f));
        return;
    }
    if (f->id.proto == PROTO_TCP)
        tcp_of(f)->due |= DUE_PUMP;
    flow_work(f);
}

static void on_time(struct net *n, enum net_dir dir)
{
    struct net_rate *r = &n->rate[dir];
    loop_timer_off(n->loop, &r->timer);
    /* Calls as many as can get something; their work is done afterwards. */
    uint64_t bytes = bucket_level(&r->rate.bytes, now_ns());
    const uint64_t quantum = rate_quantum(&r->rate, RATE_PACKET);
    for (unsigned i = 0; i < TURNS_MAX && bytes > 0 && node_linked(&r->waiting); i++) {
        struct turn *t = CONTAINER_OF(r->waiting.next, struct turn, node);
        node_unlink(&t->node);
        call(dir == DIR_OUT ? CONTAINER_OF(t, struct flow, turn[DIR_OUT])
                            : CONTAINER_OF(t, struct flow, turn[DIR_IN]),
             dir);
        bytes -= MIN(bytes, quantum);
    }
    arm(n, r);
}

static void on_time_out(struct loop_timer *t)
{
    on_time(CONTAINER_OF(t, struct net, rate[DIR_OUT].timer), DIR_OUT);
}

static void on_time_in(struct loop_timer *t)
{
    on_time(CONTAINER_OF(t, struct net, rate[DIR_IN].timer), DIR_IN);
}

void turns_init(struct net *n)
{
    const struct rate_limits *limits[] = {&n->cfg.egress, &n->cfg.ingress};
    for (unsigned i = 0; i < ARRAY_LEN(n->rate); i++) {
        rate_init(&n->rate[i].rate, limits[i], now_ns());
        node_init(&n->rate[i].waiting);
    }
    n->rate[DIR_OUT].timer.fn = on_time_out;
    n->rate[DIR_IN].timer.fn = on_time_in;
}

void turns_stop(struct net *n)
{
    for (unsigned i = 0; i < ARRAY_LEN(n->rate); i++)
        loop_timer_off(n->loop, &n->rate[i].timer);
}
