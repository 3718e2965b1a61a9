/* Invariants, each with a test that fails without it:
 *
 *  1. Size and ring addresses are checked by virtq_start() and never read from the guest again. The
 *     whole of each ring, event words included, lies inside one region and is aligned.
 *  2. Every word the guest writes is read exactly once, into a local; the local is checked, and
 *     the local is used. Descriptors are copied whole before any field is looked at.
 *  3. An index into a table is below that table's length before it is used.
 *  4. A chain has at most VIRTQ_CHAIN_MAX descriptors, and no table gives more of them than it has
 *     entries; so walking it ends, however the guest links them.
 *  5. At most one indirect table per chain, at its end; its length is a non-zero multiple of 16.
 *  6. Each iovec was translated as (address, length), so it is inside guest memory as a whole.
 *  7. Readable parts come before writable ones; a chain that mixes them is refused.
 *  8. The guest can be at most `size` chains ahead of us.
 *  9. What we write to guest memory is the used ring, its event word and `in` parts, no more.
 * 10. After the first violation `broken` is set and the queue does nothing until it is started
 *     again.
 */
#include "virtio/queue.h"

#include <assert.h>
#include <errno.h>
#include <linux/virtio_ring.h>
#include <stddef.h>

#include "util/iov.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rings are little endian");
_Static_assert(sizeof(struct vring_desc) == 16, "descriptor layout");

static uint16_t load16(const uint16_t *p, int order)
{
    return order == __ATOMIC_ACQUIRE ? __atomic_load_n(p, __ATOMIC_ACQUIRE)
                                     : __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store16(uint16_t *p, uint16_t v, int order)
{
    if (order == __ATOMIC_RELEASE)
        __atomic_store_n(p, v, __ATOMIC_RELEASE);
    else
        __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

/* The driver's event word sits behind the avail ring, ours behind the used ring. */
static uint16_t *used_event(const struct virtq *q)
{
    return &q->avail->ring[q->cfg.size];
}
static uint16_t *avail_event(const struct virtq *q)
{
    return (uint16_t *)(void *)&q->used->ring[q->cfg.size];
}

static int broke(struct virtq *q, const char *why)
{
    if (!q->broken)
        q->broken = why;
    return -EPROTO;
}

static const char *map_rings(struct virtq *q)
{
    const struct virtq_config *c = &q->cfg;
    uint64_t event = c->event_idx ? 2 : 0;

    if (c->size == 0 || c->size > VIRTQ_SIZE_MAX || (c->size & (c->size - 1)) != 0)
        return "queue: size is not a power of two in range";
    if (c->desc % 16 || c->avail % 2 || c->used % 4)
        return "queue: ring is not aligned";
    q->desc = guest_mem_ptr(q->mem, c->desc, 16ULL * c->size);
    q->avail = guest_mem_ptr(q->mem, c->avail, 4 + 2ULL * c->size + event);
    q->used = guest_mem_ptr(q->mem, c->used, 4 + 8ULL * c->size + event);
    if (!q->desc || !q->avail || !q->used)
        return "queue: ring is outside guest memory";
    /* A region may start at any host address: the host's address is what matters for access. */
    if ((uintptr_t)q->desc % 16 || (uintptr_t)q->avail % 2 || (uintptr_t)q->used % 4)
        return "queue: ring is not aligned";
    return NULL;
}

int virtq_start(struct virtq *q, const struct guest_mem *mem, const struct virtq_config *cfg,
                const char **ret_why)
{
    *q = (struct virtq){.mem = mem, .cfg = *cfg, .next_avail = cfg->next_avail};
    const char *why = map_rings(q);
    if (why) {
        *q = (struct virtq){0};
        if (ret_why)
            *ret_why = why;
        return -EINVAL;
    }
    q->next_used = load16(&q->used->idx, __ATOMIC_RELAXED);
    q->signaled = q->next_used;
    q->running = true;
    return 0;
}

void virtq_stop(struct virtq *q)
{
    q->running = false;
    q->desc = NULL;
    q->avail = NULL;
    q->used = NULL;
    q->mem = NULL;
    q->broken = NULL;
}

static bool usable(const struct virtq *q)
{
    return q->running && !q->broken;
}

bool virtq_pending(const struct virtq *q)
{
    return usable(q) && load16(&q->avail->idx, __ATOMIC_ACQUIRE) != q->next_avail;
}

/* Where descriptors are read from: the ring's own table, then possibly an indirect one. */
struct table {
    const uint8_t *base;
    uint32_t n;
    uint32_t left; /* how many more may be read before it must be a loop */
    bool indirect;
};

static const char *enter_indirect(const struct virtq *q, struct table *t,
                                  const struct vring_desc *d)
{
    if (!q->cfg.indirect)
        return "queue: indirect descriptor was not negotiated";
    if (t->indirect)
        return "queue: indirect table inside an indirect table";
    if (d->flags & VRING_DESC_F_NEXT)
        return "queue: indirect descriptor with a successor";
    if (d->len == 0 || d->len % sizeof(*d) != 0 || d->len / sizeof(*d) > VIRTQ_CHAIN_MAX)
        return "queue: bad length of an indirect table";
    const void *base = guest_mem_ptr(q->mem, d->addr, d->len);
    if (!base)
        return "queue: indirect table outside guest memory";
    uint32_t n = d->len / (uint32_t)sizeof(*d);
    *t = (struct table){.base = base, .n = n, .left = n, .indirect = true};
    return NULL;
}

static const char *add_buffer(const struct virtq *q, struct virtq_chain *c,
                              const struct vring_desc *d)
{
    bool in = d->flags & VRING_DESC_F_WRITE;
    if (c->n_out + c->n_in == VIRTQ_CHAIN_MAX)
        return "queue: chain is too long";
    if (d->len == 0)
        return "queue: empty descriptor";
    if (!in && c->n_in > 0)
        return "queue: readable descriptor after a writable one";
    void *p = guest_mem_ptr(q->mem, d->addr, d->len);
    if (!p)
        return "queue: buffer outside guest memory";
    c->iov[c->n_out + c->n_in] = (struct iovec){.iov_base = p, .iov_len = d->len};
    if (in) {
        c->n_in++;
        c->in_len += d->len;
    } else {
        c->n_out++;
        c->out_len += d->len;
    }
    return NULL;
}

static const char *walk(const struct virtq *q, struct virtq_chain *c)
{
    struct table t = {.base = (const uint8_t *)q->desc, .n = q->cfg.size, .left = q->cfg.size};
    uint32_t i = c->head;
    for (;;) {
        if (i >= t.n)
            return "queue: descriptor index out of range";
        if (t.left-- == 0)
            return "queue: chain loops or is longer than its table";
        struct vring_desc d;
        guest_copy(&d, t.base + i * sizeof(d), sizeof(d));
        const char *why;
        if (d.flags & VRING_DESC_F_INDIRECT) {
            why = enter_indirect(q, &t, &d);
            i = 0;
        } else {
            why = add_buffer(q, c, &d);
            i = d.next;
            if (!why && !(d.flags & VRING_DESC_F_NEXT))
                return NULL;
        }
        if (why)
            return why;
    }
}

static int read_chain(struct virtq *q, uint16_t head, struct virtq_chain *c)
{
    c->head = head;
    c->n_out = c->n_in = 0;
    c->out_len = c->in_len = 0;
    const char *why = walk(q, c);
    return why ? broke(q, why) : 1;
}

int virtq_again(struct virtq *q, uint16_t head, struct virtq_chain *c)
{
    if (q->broken)
        return -EPROTO;
    return q->running && q->popped > 0 ? read_chain(q, head, c) : 0;
}

int virtq_pop(struct virtq *q, struct virtq_chain *c)
{
    if (q->broken)
        return -EPROTO;
    if (!q->running)
        return 0;
    uint16_t ahead = (uint16_t)(load16(&q->avail->idx, __ATOMIC_ACQUIRE) - q->next_avail);
    if (ahead == 0)
        return 0;
    if (ahead > q->cfg.size)
        return broke(q, "queue: avail index is further ahead than the queue is long");

    uint16_t at = q->next_avail & (q->cfg.size - 1);
    int r = read_chain(q, load16(&q->avail->ring[at], __ATOMIC_RELAXED), c);
    if (r < 0)
        return r;
    q->next_avail++;
    q->popped++;
    return 1;
}

void virtq_put(struct virtq *q, uint16_t head, uint32_t written)
{
    if (!usable(q))
        return;
    assert(q->popped > 0);
    q->popped--;
    struct vring_used_elem *e = &q->used->ring[q->next_used & (q->cfg.size - 1)];
    __atomic_store_n(&e->id, head, __ATOMIC_RELAXED);
    __atomic_store_n(&e->len, written, __ATOMIC_RELAXED);
    q->next_used++;
}

void virtq_show(struct virtq *q)
{
    if (usable(q))
        store16(&q->used->idx, q->next_used, __ATOMIC_RELEASE);
}

void virtq_push(struct virtq *q, const struct virtq_chain *c, uint32_t written)
{
    virtq_put(q, c->head, written);
    virtq_show(q);
}

void virtq_unpop(struct virtq *q, uint16_t n)
{
    if (!usable(q))
        return;
    assert(q->popped >= n);
    q->popped -= n;
    q->next_avail = (uint16_t)(q->next_avail - n);
}

bool virtq_should_interrupt(struct virtq *q)
{
    if (!usable(q) || q->signaled == q->next_used)
        return false;
    /* The used index must be visible before we check whether the driver sleeps. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint16_t old = q->signaled;
    bool first = !q->signaled_valid;
    q->signaled = q->next_used;
    q->signaled_valid = true;
    if (!q->cfg.event_idx)
        return !(load16(&q->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT);
    uint16_t event = load16(used_event(q), __ATOMIC_RELAXED);
    return first || vring_need_event(event, q->next_used, old);
}

void virtq_notify_off(struct virtq *q)
{
    if (usable(q) && !q->cfg.event_idx)
        store16(&q->used->flags, VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
}

bool virtq_notify_on(struct virtq *q)
{
    if (!usable(q))
        return false;
    if (q->cfg.event_idx)
        store16(avail_event(q), q->next_avail, __ATOMIC_RELAXED);
    else
        store16(&q->used->flags, 0, __ATOMIC_RELAXED);
    /* The driver adds, then reads our word; we set the word, then check the ring: one of us sees
     * the other's change. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return virtq_pending(q);
}

size_t virtq_chain_read(const struct virtq_chain *c, size_t off, void *dst, size_t len)
{
    return iov_read(virtq_out(c), c->n_out, off, dst, len);
}

size_t virtq_chain_write(const struct virtq_chain *c, size_t off, const void *src, size_t len)
{
    return iov_write(virtq_in(c), c->n_in, off, src, len);
}
