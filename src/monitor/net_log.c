#include "monitor/net_log.h"

#include "logs/net_record.h"
#include "monitor/exec_log.h"
#include "util/text.h"

#include <string.h>

#define MS(n) ((uint64_t)(n)*1000000ULL)
#define NS_PER_S 1000000000ULL

/* Name and reason, each escaped twice, and short members. */
enum { LINE_MAX_LEN = 6 * (NET_RECORD_NAME_MAX + NET_RECORD_WHY_MAX) + 512 };

static bool may_write(struct bucket *b, uint64_t now)
{
    if (bucket_level(b, now) == 0)
        return false;
    bucket_take(b, 1);
    return true;
}

/* --- lines --- */

static uint8_t *put_member(uint8_t *to, const char *key, const char *value)
{
    to = log_put_text(log_put_text(log_put_text(to, ",\""), key), "\":\"");
    uint8_t *end = log_escape(to, (const uint8_t *)value, strlen(value));
    return log_put_text(end ? end : to, "\"");
}

static uint8_t *put_number(uint8_t *to, const char *key, uint64_t v)
{
    to = log_put_text(log_put_text(log_put_text(to, ",\""), key), "\":");
    return log_put_decimal(to, v, 1);
}

static const char *proto_name(uint8_t proto)
{
    return proto == PROTO_TCP ? "tcp" : proto == PROTO_UDP ? "udp" : "icmp";
}

static uint8_t *put_flow(uint8_t *to, const struct net_flow_id *id)
{
    char address[ADDR_TEXT_MAX];
    addr_format(&id->peer.addr, address);
    to = put_member(to, "direction", id->inbound ? "ingress" : "egress");
    to = put_member(to, "proto", proto_name(id->proto));
    to = put_member(to, "address", address);
    bool ports = id->proto == PROTO_TCP || id->proto == PROTO_UDP;
    return ports ? put_number(to, "port", id->inbound ? id->guest.port : id->peer.port) : to;
}

static void arm_timer(struct net_log *l, struct loop_timer *t, uint64_t ms)
{
    if (t->at_ns == 0)
        loop_timer_set(l->loop, t, MS(ms));
}

static uint8_t *begin_line(struct net_log *l, uint64_t at_ns, const char *kind)
{
    uint8_t *to = l->w.broken ? NULL : buf_reserve(&l->w.pending, LINE_MAX_LEN);
    if (!to) /* out of memory: lose this line rather than the log */
        return NULL;
    char t[TIME_TEXT_MAX];
    time_rfc3339(at_ns, t);
    to = log_put_text(log_put_text(log_put_text(to, "{\"t\":\""), t), "\"");
    return put_member(to, "kind", kind);
}

static void end_line(struct net_log *l, uint8_t *to)
{
    to = log_put_text(to, "}\n");
    buf_commit(&l->w.pending, (size_t)(to - (buf_head(&l->w.pending) + buf_len(&l->w.pending))));
    arm_timer(l, &l->flush_timer, LOG_FLUSH_MS);
}

static void put_note(struct net_log *l, const struct net_note *n, uint64_t count)
{
    static const enum net_record_kind kinds[] = {[GATE_FLOW] = NET_RECORD_FLOW,
                                                 [GATE_SHOWN] = NET_RECORD_SHOWN,
                                                 [GATE_QUESTION] = NET_RECORD_QUESTION,
                                                 [GATE_ENDED] = NET_RECORD_ENDED,
                                                 [GATE_SECRET] = NET_RECORD_SECRET};
    uint8_t *to = begin_line(l, n->at_ns, net_record_kind_name(kinds[n->what]));
    if (!to)
        return;
    if (n->what != GATE_ENDED)
        to = put_member(to, "verdict", n->allow ? "allow" : "deny");
    if (n->has_id)
        to = put_flow(to, &n->id);
    char text[NET_RECORD_NAME_MAX];
    net_record_escape(n->name, text, sizeof(text));
    if (text[0])
        to = put_member(to, "name", text);
    net_record_escape(n->filtered ? "denied: the answer contains an address that no rule allows"
                                  : n->why,
                      text, sizeof(text));
    to = put_member(to, "why", text);
    if (n->what == GATE_ENDED) {
        to = put_number(to, "to_host", n->to_host);
        to = put_number(to, "to_guest", n->to_guest);
        to = put_number(to, "ms", n->ns / 1000000);
    }
    if (count > 1)
        to = put_number(to, "count", count);
    end_line(l, to);
}

static void put_missed(struct net_log *l)
{
    uint8_t *to = l->missed ? begin_line(l, realtime_ns(), "missed") : NULL;
    if (!to)
        return;
    end_line(l, put_number(to, "count", l->missed));
    l->missed = 0;
}

/* --- denials --- */

/* The guest's own port does not matter, since it differs with each attempt. */
static bool same_denial(const struct net_note *a, const struct net_note *b)
{
    if (a->what != b->what || a->filtered != b->filtered || a->has_id != b->has_id)
        return false;
    const struct net_flow_id *x = &a->id, *y = &b->id;
    if (a->has_id && (x->proto != y->proto || x->inbound != y->inbound ||
                      !addr_equal(&x->peer.addr, &y->peer.addr) ||
                      (x->inbound ? x->guest.port != y->guest.port : x->peer.port != y->peer.port)))
        return false;
    return strcmp(a->name, b->name) == 0 && strcmp(a->why, b->why) == 0;
}

static struct net_log_slot *find_slot(struct net_log *l, const struct net_note *n, uint64_t now)
{
    for (size_t i = 0; i < NET_LOG_SLOTS; i++) {
        struct net_log_slot *s = &l->slot[i];
        if (s->used_ns && now - s->used_ns < MS(NET_LOG_FORGET_MS) && same_denial(&s->note, n))
            return s;
    }
    return NULL;
}

/* Writes the count of a slot; false when that exceeds the budget. */
static bool settle(struct net_log *l, struct net_log_slot *s, uint64_t now)
{
    if (s->more == 0)
        return true;
    if (!may_write(&l->deny, now))
        return false;
    put_note(l, &s->note, s->more);
    s->more = 0;
    return true;
}

/* A slot for a new kind of denial: a free one, or the least recently used. */
static void take_slot(struct net_log *l, const struct net_note *n, uint64_t now)
{
    struct net_log_slot *s = &l->slot[0];
    for (size_t i = 1; i < NET_LOG_SLOTS; i++)
        if (l->slot[i].used_ns < s->used_ns)
            s = &l->slot[i];
    if (!settle(l, s, now))
        l->missed += s->more;
    *s = (struct net_log_slot){.note = *n, .used_ns = now};
}

static void note_denial(struct net_log *l, const struct net_note *n)
{
    uint64_t now = l->now();
    struct net_log_slot *s = find_slot(l, n, now);
    if (s) {
        s->note.at_ns = n->at_ns;
        s->used_ns = now;
        s->more++;
        return;
    }
    if (!may_write(&l->deny, now)) {
        l->missed++;
        return;
    }
    put_note(l, n, 1);
    take_slot(l, n, now);
    log_writer_flush(&l->w); /* it is recorded even if the sandbox is killed next */
}

/* --- the log --- */

static bool something_counted(const struct net_log *l)
{
    bool any = l->missed > 0;
    for (size_t i = 0; i < NET_LOG_SLOTS && !any; i++)
        any = l->slot[i].more > 0;
    return any;
}

static void on_flush(struct loop_timer *t)
{
    struct net_log *l = CONTAINER_OF(t, struct net_log, flush_timer);
    log_writer_flush(&l->w);
    buf_shrink(&l->w.pending);
}

static void write_counts(struct net_log *l)
{
    uint64_t now = l->now();
    for (size_t i = 0; i < NET_LOG_SLOTS; i++)
        (void)settle(l, &l->slot[i], now);
    put_missed(l);
}

static void on_count(struct loop_timer *t)
{
    struct net_log *l = CONTAINER_OF(t, struct net_log, count_timer);
    write_counts(l);
    if (something_counted(l))
        arm_timer(l, t, NET_LOG_COUNT_MS);
}

int net_log_open(struct net_log *l, struct loop *loop, int logs_dirfd)
{
    *l = (struct net_log){.loop = loop,
                          .now = now_ns,
                          .flush_timer = {.fn = on_flush},
                          .count_timer = {.fn = on_count}};
    bucket_init(&l->allow, NET_LOG_ALLOW_PER_S, NS_PER_S, NET_LOG_ALLOW_BURST, 0, now_ns());
    bucket_init(&l->deny, NET_LOG_DENY_PER_S, NS_PER_S, NET_LOG_DENY_BURST, 0, now_ns());
    return log_writer_open(&l->w, logs_dirfd, LOG_NET_NAME);
}

void net_log_note(struct net_log *l, const struct net_note *n)
{
    if (l->w.broken)
        return;
    if (!n->allow)
        note_denial(l, n);
    else if (may_write(&l->allow, l->now()))
        put_note(l, n, 1);
    else
        l->missed++;
    if (something_counted(l))
        arm_timer(l, &l->count_timer, NET_LOG_COUNT_MS);
}

void net_log_missed(struct net_log *l, uint64_t n)
{
    l->missed += n;
    if (l->missed)
        arm_timer(l, &l->count_timer, NET_LOG_COUNT_MS);
}

void net_log_flush(struct net_log *l)
{
    write_counts(l);
    log_writer_flush(&l->w);
}

void net_log_close(struct net_log *l)
{
    net_log_flush(l);
    log_writer_close(&l->w);
}
