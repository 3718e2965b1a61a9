#include "net/frag.h"

#include <stdlib.h>

enum { L3_MAX = 40, DATA_MAX = 65535 };

struct slot {
    bool used;
    struct net_addr src, dst;
    uint8_t proto;
    uint32_t id;
    uint64_t started_ns;
    size_t len;    /* bytes of payload so far */
    uint8_t *data; /* a frame: Ethernet and IP headers, then the payload */
};

struct frag_table {
    struct slot slot[FRAG_SLOTS];
    struct iovec iov;
    struct link_offload off;
};

struct frag_table *frag_new(void)
{
    return calloc(1, sizeof(struct frag_table));
}

static void slot_drop(struct slot *s)
{
    free(s->data);
    *s = (struct slot){0};
}

void frag_reset(struct frag_table *t)
{
    for (unsigned i = 0; i < FRAG_SLOTS; i++)
        slot_drop(&t->slot[i]);
}

void frag_free(struct frag_table *t)
{
    if (t)
        frag_reset(t);
    free(t);
}

static struct slot *slot_find(struct frag_table *t, const struct packet *p)
{
    for (unsigned i = 0; i < FRAG_SLOTS; i++) {
        struct slot *s = &t->slot[i];
        if (s->used && s->id == p->frag_id && s->proto == p->proto &&
            addr_equal(&s->src, &p->src) && addr_equal(&s->dst, &p->dst))
            return s;
    }
    return NULL;
}

static struct slot *slot_new(struct frag_table *t, const struct packet *p, uint64_t now)
{
    struct slot *s = NULL;
    for (unsigned i = 0; i < FRAG_SLOTS && !s; i++)
        if (!t->slot[i].used || now - t->slot[i].started_ns > FRAG_TIMEOUT_S * 1000000000ULL)
            s = &t->slot[i];
    if (!s)
        return NULL;
    slot_drop(s);
    s->data = malloc(LINK_ETH + L3_MAX + DATA_MAX);
    if (!s->data)
        return NULL;
    s->used = true;
    s->src = p->src;
    s->dst = p->dst;
    s->proto = p->proto;
    s->id = p->frag_id;
    s->started_ns = now;
    memcpy(s->data, p->head, LINK_ETH);
    return s;
}

/* Writes the datagram's header as if it had come in one piece. */
static size_t write_l3(struct slot *s, const struct packet *p)
{
    uint8_t *h = s->data + LINK_ETH;
    if (p->ethertype == ETHERTYPE_V4) {
        memset(h, 0, 20);
        h[0] = 0x45;
        put16(h + 2, (uint16_t)(20 + s->len));
        h[8] = p->ttl;
        h[9] = p->proto;
        memcpy(h + 12, addr_bytes4(&p->src), 4);
        memcpy(h + 16, addr_bytes4(&p->dst), 4);
        return 20;
    }
    memset(h, 0, 8);
    h[0] = 0x60;
    put16(h + 4, (uint16_t)s->len);
    h[6] = p->proto;
    h[7] = p->ttl;
    memcpy(h + 8, p->src.b, 16);
    memcpy(h + 24, p->dst.b, 16);
    return 40;
}

bool frag_add(struct frag_table *t, const struct packet *p, uint64_t now, struct packet *out,
              enum packet_fault *fault)
{
    size_t l3 = p->ethertype == ETHERTYPE_V4 ? 20 : 40;
    struct slot *s = slot_find(t, p);
    *fault = PACKET_FRAGMENT;
    if (p->frag_off == 0) {
        if (s)
            slot_drop(s); /* start over: of overlapping versions, the last one counts */
        s = slot_new(t, p, now);
    }
    if (!s)
        return false;
    size_t max = DATA_MAX - (l3 == 20 ? 20 : 0);
    bool odd = p->more && p->l4_len % 8 != 0;
    if (p->frag_off != s->len || p->l4_len == 0 || odd || p->l4_len > max - s->len ||
        packet_read(p, p->l4, s->data + LINK_ETH + l3 + s->len, p->l4_len) != p->l4_len) {
        slot_drop(s);
        return false;
    }
    s->len += p->l4_len;
    *fault = PACKET_OK;
    if (p->more)
        return false;
    (void)write_l3(s, p);
    s->used = false; /* its bytes stay until the slot is needed again */
    t->iov = (struct iovec){.iov_base = s->data, .iov_len = LINK_ETH + l3 + s->len};
    t->off = (struct link_offload){0};
    *fault = packet_parse(out, &t->off, &t->iov, 1, t->iov.iov_len);
    return *fault == PACKET_OK;
}
