/* A small guest for tests: its own RAM, rings in it, and a driver that does what it is told, right
 * or wrong. The RAM is a heap block of exactly its size, so that a sanitizer sees every byte that a
 * device touches outside it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "virtio/device.h"

enum {
    FAKE_GPA = 0x100000,
    FAKE_RAM = 1 << 20,
    FAKE_QUEUES = VIRTIO_QUEUES_MAX,
    D_NEXT = 1,
    D_WRITE = 2,
    D_INDIRECT = 4,
};

struct fake_buf {
    uint64_t addr;
    uint32_t len;
    bool in; /* the device writes it */
};

struct fake_vq {
    struct virtq_config cfg;
    uint16_t avail_idx, last_used, next_desc;
};

struct fake {
    uint8_t *ram;
    struct guest_mem mem;
    uint64_t brk; /* next free address */
    struct fake_vq q[FAKE_QUEUES];

    /* A device, if there is one. */
    struct virtio_dev *dev;
    struct virtio_transport transport;
    unsigned interrupts[FAKE_QUEUES];
    unsigned broken_calls;
    const char *broken;
    bool later[FAKE_QUEUES];
    uint64_t later_ns[FAKE_QUEUES];
};

void fake_init(struct fake *f);
void fake_fini(struct fake *f);
/* Lays out ring q of that size in fresh RAM. */
void fake_ring(struct fake *f, unsigned q, uint16_t size);
/* Attaches a device, accepts all its features but `without`, starts all its queues. */
void fake_attach(struct fake *f, struct virtio_dev *dev, uint16_t size, uint64_t without);
void fake_detach(struct fake *f);

uint64_t fake_alloc(struct fake *f, size_t n, size_t align);
void *fake_ptr(struct fake *f, uint64_t gpa);

/* Raw access to the rings. */
void fake_desc(struct fake *f, unsigned q, uint16_t i, uint64_t addr, uint32_t len, uint16_t flags,
               uint16_t next);
void fake_table(struct fake *f, uint64_t table, uint16_t i, uint64_t addr, uint32_t len,
                uint16_t flags, uint16_t next);
void fake_publish(struct fake *f, unsigned q, uint16_t head);
void fake_set_avail_idx(struct fake *f, unsigned q, uint16_t idx);
uint16_t *fake_used_event(struct fake *f, unsigned q);
uint16_t *fake_avail_event(struct fake *f, unsigned q);
uint16_t *fake_avail_flags(struct fake *f, unsigned q);
uint16_t *fake_used_flags(struct fake *f, unsigned q);
uint16_t fake_used_idx(struct fake *f, unsigned q);

/* Adds a proper chain and returns its head. */
uint16_t fake_add(struct fake *f, unsigned q, const struct fake_buf *b, unsigned n);
/* The next used element, if there is one. */
bool fake_used(struct fake *f, unsigned q, uint32_t *id, uint32_t *len);
/* Kicks, and goes on with what the device wants to do later (at once, at most `turns` times). */
void fake_kick(struct fake *f, unsigned q);
unsigned fake_run(struct fake *f, unsigned turns);
