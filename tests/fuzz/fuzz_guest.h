/* A guest that does what the fuzzer says: its memory, its rings, and operations on them, all taken
 * from the input. Header only; each virtio target includes it once. */
#pragma once

#include <linux/virtio_ring.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "util/loop.h"
#include "virtio/device.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- input, read from the front; zeros after its end ----------------------------------------- */

struct input {
    const uint8_t *p;
    size_t n;
};

static inline uint8_t in_u8(struct input *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->p++;
}
static inline uint16_t in_u16(struct input *in)
{
    uint16_t lo = in_u8(in);
    return (uint16_t)(lo | in_u8(in) << 8);
}
static inline uint32_t in_u32(struct input *in)
{
    uint32_t lo = in_u16(in);
    return lo | (uint32_t)in_u16(in) << 16;
}
static inline uint64_t in_u64(struct input *in)
{
    uint64_t lo = in_u32(in);
    return lo | (uint64_t)in_u32(in) << 32;
}
static inline size_t in_bytes(struct input *in, void *to, size_t n)
{
    n = n < in->n ? n : in->n;
    if (n > 0)
        memcpy(to, in->p, n);
    in->p += n;
    in->n -= n;
    return n;
}

/* --- memory and rings ------------------------------------------------------------------------ */

enum {
    G_RAM = 64 * 1024,
    G_SIZE = 16,      /* entries of a ring */
    G_RING = 1024,    /* bytes for the rings of one queue, at the start of RAM */
    G_DATA = 8 * 1024 /* where buffers start */
};
#define G_GPA 0x10000ULL

struct guest {
    uint8_t *ram; /* heap: a sanitizer sees both ends */
    struct guest_mem mem;
    struct virtio_dev *dev;
    struct virtio_transport transport;
    unsigned interrupts, broken;
    bool later[VIRTIO_QUEUES_MAX];
};

static inline void guest_interrupt(struct virtio_transport *t, unsigned queue)
{
    CONTAINER_OF(t, struct guest, transport)->interrupts++;
}
static inline void guest_broken(struct virtio_transport *t, const char *reason)
{
    if (!reason)
        abort();
    CONTAINER_OF(t, struct guest, transport)->broken++;
}
static inline void guest_later(struct virtio_transport *t, unsigned queue, uint64_t ns)
{
    CONTAINER_OF(t, struct guest, transport)->later[queue] = true;
}

static inline void guest_init(struct guest *g)
{
    *g = (struct guest){0};
    g->ram = aligned_alloc(64, G_RAM);
    if (!g->ram || guest_mem_add(&g->mem, G_GPA, G_RAM, g->ram) < 0)
        abort();
    memset(g->ram, 0, G_RAM);
    g->transport.interrupt = guest_interrupt;
    g->transport.broken = guest_broken;
    g->transport.kick_later = guest_later;
}

static inline struct virtq_config guest_ring(unsigned q)
{
    uint64_t at = G_GPA + (uint64_t)q * G_RING;
    return (struct virtq_config){.size = G_SIZE,
                                 .desc = at,
                                 .avail = at + 256,
                                 .used = at + 512,
                                 .event_idx = true,
                                 .indirect = true};
}

static inline void guest_attach(struct guest *g, struct virtio_dev *d, uint64_t without)
{
    g->dev = d;
    virtio_dev_attach(d, &g->transport);
    (void)virtio_dev_set_features(d, d->features & ~without);
    for (unsigned i = 0; i < d->ops->n_queues; i++) {
        struct virtq_config c = guest_ring(i);
        (void)virtio_dev_start_queue(d, i, &g->mem, &c);
    }
}

static inline void guest_fini(struct guest *g)
{
    free(g->ram);
}

static inline uint16_t *guest_u16(struct guest *g, size_t at)
{
    return (uint16_t *)(void *)(g->ram + at);
}

/* Adds one to the avail index of queue q, with that head. */
static inline void guest_publish(struct guest *g, unsigned q, uint16_t head)
{
    uint16_t *avail = guest_u16(g, (size_t)q * G_RING + 256);
    avail[2 + avail[1] % G_SIZE] = head;
    avail[1]++;
}

static inline void guest_desc(struct guest *g, size_t at, uint64_t addr, uint32_t len,
                              uint16_t flags, uint16_t next)
{
    struct vring_desc d = {.addr = addr, .len = len, .flags = flags, .next = next};
    memcpy(g->ram + at, &d, sizeof(d));
}

/* An address and a length: mostly sane, sometimes anything. */
static inline void in_range_of_ram(struct input *in, uint64_t *addr, uint32_t *len)
{
    uint8_t how = in_u8(in);
    *addr = how & 1 ? in_u64(in) : G_GPA + in_u16(in);
    *len = how & 2 ? in_u32(in) : in_u8(in) + 1U;
}

/* What any guest can do to its memory and rings. `op` is below GUEST_OPS. */
enum { GUEST_OPS = 7 };
static inline void guest_op(struct guest *g, struct input *in, unsigned op, unsigned n_queues)
{
    unsigned q = n_queues > 1 ? in_u8(in) % n_queues : 0;
    uint64_t addr;
    uint32_t len;
    switch (op) {
    case 0: { /* bytes anywhere */
        size_t at = in_u16(in), n = in_u8(in);
        (void)in_bytes(in, g->ram + at, n < G_RAM - at ? n : G_RAM - at);
        break;
    }
    case 1: { /* a descriptor of the ring, or of a table elsewhere */
        size_t at = in_u8(in) & 1 ? in_u16(in) % (G_RAM - 16)
                                  : (size_t)q * G_RING + in_u8(in) % G_SIZE * 16UL;
        in_range_of_ram(in, &addr, &len);
        uint16_t flags = in_u8(in) & 7;
        guest_desc(g, at, addr, len, flags, in_u8(in) & 31);
        break;
    }
    case 2:
        guest_publish(g, q, in_u8(in) % (G_SIZE + 1));
        break;
    case 3: /* the index jumps */
        guest_u16(g, (size_t)q * G_RING + 256)[1] = in_u16(in);
        break;
    case 4: { /* a chain that is in order */
        unsigned n = in_u8(in) % 6 + 1, n_out = in_u8(in) % (n + 1);
        for (unsigned i = 0; i < n; i++)
            guest_desc(g, (size_t)q * G_RING + i * 16UL, G_GPA + G_DATA + i * 2048UL,
                       in_u16(in) % 2048 + 1U,
                       (uint16_t)((i + 1 < n ? 1 : 0) | (i >= n_out ? 2 : 0)), (uint16_t)(i + 1));
        guest_publish(g, q, 0);
        break;
    }
    case 5:
        if (g->dev)
            virtio_dev_kick(g->dev, q);
        break;
    default:
        for (unsigned i = 0; i < VIRTIO_QUEUES_MAX && g->dev; i++)
            if (g->later[i]) {
                g->later[i] = false;
                virtio_dev_kick(g->dev, i);
            }
        break;
    }
}

/* Reset, and start over, as a driver that was unloaded and loaded again. */
static inline void guest_restart(struct guest *g, struct input *in)
{
    struct virtio_dev *d = g->dev;
    for (unsigned i = 0; i < d->ops->n_queues; i++)
        virtio_dev_stop_queue(d, i);
    if (virtio_dev_running(d) || d->broken)
        abort();
    if (in_u8(in) & 1)
        memset(g->ram, 0, G_DATA);
    (void)virtio_dev_set_features(d, d->features & ~((uint64_t)(in_u8(in) & 3) << 28));
    for (unsigned i = 0; i < d->ops->n_queues; i++) {
        struct virtq_config c = guest_ring(i);
        c.next_avail = guest_u16(g, i * (size_t)G_RING + 256)[1];
        (void)virtio_dev_start_queue(d, i, &g->mem, &c);
    }
}
