#include "fake_driver.h"

#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <string.h>

#include "util/loop.h"

void fake_init(struct fake *f)
{
    *f = (struct fake){.brk = FAKE_GPA};
    f->ram = aligned_alloc(4096, FAKE_RAM);
    if (!f->ram)
        abort();
    memset(f->ram, 0, FAKE_RAM);
    if (guest_mem_add(&f->mem, FAKE_GPA, FAKE_RAM, f->ram) < 0)
        abort();
}

void fake_fini(struct fake *f)
{
    if (f->dev)
        fake_detach(f);
    free(f->ram);
}

void *fake_ptr(struct fake *f, uint64_t gpa)
{
    if (gpa < FAKE_GPA || gpa >= FAKE_GPA + FAKE_RAM)
        abort();
    return f->ram + (gpa - FAKE_GPA);
}

uint64_t fake_alloc(struct fake *f, size_t n, size_t align)
{
    uint64_t at = (f->brk + align - 1) / align * align;
    if (at + n > FAKE_GPA + FAKE_RAM)
        abort();
    f->brk = at + n;
    return at;
}

void fake_ring(struct fake *f, unsigned q, uint16_t size)
{
    f->q[q] = (struct fake_vq){.cfg = {
                                   .size = size,
                                   .desc = fake_alloc(f, 16UL * size, 16),
                                   .avail = fake_alloc(f, 6 + 2UL * size, 2),
                                   .used = fake_alloc(f, 6 + 8UL * size, 4),
                                   .event_idx = true,
                                   .indirect = true,
                               }};
}

static void on_interrupt(struct virtio_transport *t, unsigned queue)
{
    CONTAINER_OF(t, struct fake, transport)->interrupts[queue]++;
}

static void on_broken(struct virtio_transport *t, const char *reason)
{
    struct fake *f = CONTAINER_OF(t, struct fake, transport);
    f->broken = reason;
    f->broken_calls++;
}

static void on_kick_later(struct virtio_transport *t, unsigned queue, uint64_t delay_ns)
{
    struct fake *f = CONTAINER_OF(t, struct fake, transport);
    f->later[queue] = true;
    f->later_ns[queue] = delay_ns;
}

void fake_attach(struct fake *f, struct virtio_dev *dev, uint16_t size, uint64_t without)
{
    f->dev = dev;
    f->transport = (struct virtio_transport){
        .interrupt = on_interrupt, .broken = on_broken, .kick_later = on_kick_later};
    virtio_dev_attach(dev, &f->transport);
    if (virtio_dev_set_features(dev, dev->features & ~without) < 0)
        abort();
    for (unsigned i = 0; i < dev->ops->n_queues; i++) {
        if (f->q[i].cfg.size == 0)
            fake_ring(f, i, size);
        if (virtio_dev_start_queue(dev, i, &f->mem, &f->q[i].cfg) < 0)
            abort();
    }
}

void fake_detach(struct fake *f)
{
    virtio_dev_detach(f->dev);
    f->dev = NULL;
}

void fake_table(struct fake *f, uint64_t table, uint16_t i, uint64_t addr, uint32_t len,
                uint16_t flags, uint16_t next)
{
    struct vring_desc d = {.addr = addr, .len = len, .flags = flags, .next = next};
    memcpy((uint8_t *)fake_ptr(f, table) + i * sizeof(d), &d, sizeof(d));
}

void fake_desc(struct fake *f, unsigned q, uint16_t i, uint64_t addr, uint32_t len, uint16_t flags,
               uint16_t next)
{
    fake_table(f, f->q[q].cfg.desc, i, addr, len, flags, next);
}

static struct vring_avail *avail(struct fake *f, unsigned q)
{
    return fake_ptr(f, f->q[q].cfg.avail);
}
static struct vring_used *used(struct fake *f, unsigned q)
{
    return fake_ptr(f, f->q[q].cfg.used);
}

void fake_set_avail_idx(struct fake *f, unsigned q, uint16_t idx)
{
    f->q[q].avail_idx = idx;
    __atomic_store_n(&avail(f, q)->idx, idx, __ATOMIC_RELEASE);
}

void fake_publish(struct fake *f, unsigned q, uint16_t head)
{
    avail(f, q)->ring[f->q[q].avail_idx % f->q[q].cfg.size] = head;
    fake_set_avail_idx(f, q, (uint16_t)(f->q[q].avail_idx + 1));
}

uint16_t *fake_used_event(struct fake *f, unsigned q)
{
    return &avail(f, q)->ring[f->q[q].cfg.size];
}
uint16_t *fake_avail_event(struct fake *f, unsigned q)
{
    return (uint16_t *)(void *)&used(f, q)->ring[f->q[q].cfg.size];
}
uint16_t *fake_avail_flags(struct fake *f, unsigned q)
{
    return &avail(f, q)->flags;
}
uint16_t *fake_used_flags(struct fake *f, unsigned q)
{
    return &used(f, q)->flags;
}
uint16_t fake_used_idx(struct fake *f, unsigned q)
{
    return __atomic_load_n(&used(f, q)->idx, __ATOMIC_ACQUIRE);
}

uint16_t fake_add(struct fake *f, unsigned q, const struct fake_buf *b, unsigned n)
{
    struct fake_vq *v = &f->q[q];
    uint16_t mask = (uint16_t)(v->cfg.size - 1);
    uint16_t head = v->next_desc & mask;
    for (unsigned i = 0; i < n; i++) {
        uint16_t at = v->next_desc++ & mask;
        bool last = i + 1 == n;
        fake_desc(f, q, at, b[i].addr, b[i].len,
                  (uint16_t)((last ? 0 : D_NEXT) | (b[i].in ? D_WRITE : 0)),
                  last ? 0 : v->next_desc & mask);
    }
    fake_publish(f, q, head);
    return head;
}

bool fake_used(struct fake *f, unsigned q, uint32_t *id, uint32_t *len)
{
    struct fake_vq *v = &f->q[q];
    if (fake_used_idx(f, q) == v->last_used)
        return false;
    const struct vring_used_elem *e = &used(f, q)->ring[v->last_used++ % v->cfg.size];
    if (id)
        *id = e->id;
    if (len)
        *len = e->len;
    return true;
}

void fake_kick(struct fake *f, unsigned q)
{
    virtio_dev_kick(f->dev, q);
}

unsigned fake_run(struct fake *f, unsigned turns)
{
    unsigned done = 0;
    for (bool any = true; any && done < turns;) {
        any = false;
        for (unsigned i = 0; i < FAKE_QUEUES; i++)
            if (f->later[i]) {
                f->later[i] = false;
                any = true;
                done++;
                virtio_dev_kick(f->dev, i);
            }
    }
    return done;
}
