/* For tests of devices behind virtio-mmio: loops on threads, as in the monitor, and registers as a driver
 * uses them. */
#pragma once

#include <linux/virtio_mmio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_driver.h"
#include "unit.h"
#include "util/loop.h"
#include "virtio/mmio.h"

/* --- loops on threads ------------------------------------------------------------------------- */

struct runner {
    struct loop loop;
    struct loop_src stop;
    pthread_t thread;
    bool running;
};

static void on_stop(struct loop_src *src, uint32_t ev)
{
    loop_stop(&CONTAINER_OF(src, struct runner, stop)->loop);
}

static void *runner_main(void *arg)
{
    (void)loop_run(&((struct runner *)arg)->loop);
    return NULL;
}

static inline void runner_init(struct runner *r)
{
    assert_int_equal(loop_init(&r->loop), 0);
    r->stop = (struct loop_src){.fd = eventfd(0, EFD_CLOEXEC), .fn = on_stop};
    assert_int_equal(loop_add(&r->loop, &r->stop, EPOLLIN), 0);
}

static inline void runner_start(struct runner *r)
{
    r->loop.stop = false;
    assert_int_equal(pthread_create(&r->thread, NULL, runner_main, r), 0);
    r->running = true;
}

static inline void runner_stop(struct runner *r)
{
    uint64_t n = 1;
    if (!r->running)
        return;
    assert_int_equal(write(r->stop.fd, &n, sizeof(n)), sizeof(n));
    assert_int_equal(pthread_join(r->thread, NULL), 0);
    assert_int_equal(read(r->stop.fd, &n, sizeof(n)), sizeof(n));
    r->running = false;
}

static inline void runner_fini(struct runner *r)
{
    int fd = r->stop.fd;
    loop_del(&r->loop, &r->stop);
    (void)close(fd);
    loop_fini(&r->loop);
}

/* --- the registers ---------------------------------------------------------------------------- */

/* What the device's events said; the context of `events`. */
struct seen {
    _Atomic(const char *) broken;
    _Atomic int lives;
};

static void on_broken(void *ctx, const char *reason)
{
    ((struct seen *)ctx)->broken = reason;
}

static void on_live(void *ctx, bool live)
{
    ((struct seen *)ctx)->lives += live ? 1 : -1;
}

static const struct mmio_events events = {.broken = on_broken, .live = on_live};

static inline uint32_t *new_page(void)
{
    uint32_t *page = aligned_alloc(4096, MMIO_PAGE);
    assert_non_null(page);
    return memset(page, 0, MMIO_PAGE);
}

static inline uint32_t get_register(struct mmio *m, uint32_t off)
{
    uint32_t v;
    mmio_read(m, off, &v, sizeof(v));
    return v;
}

static inline void put_register(struct mmio *m, uint32_t off, uint32_t v)
{
    mmio_write(m, off, &v, sizeof(v));
}

/* Of anything that has its registers as `m`. */
#define rd(b, off) get_register((b)->m, off)
#define wr(b, off, v) put_register((b)->m, off, v)

static inline void put_features(struct mmio *m, uint64_t features)
{
    for (uint32_t half = 0; half < 2; half++) {
        put_register(m, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
        put_register(m, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(features >> 32 * half));
    }
}

static inline void put_queue(struct mmio *m, uint32_t q, uint32_t size,
                             const struct virtq_config *c)
{
    put_register(m, VIRTIO_MMIO_QUEUE_SEL, q);
    put_register(m, VIRTIO_MMIO_QUEUE_NUM, size);
    put_register(m, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)c->desc);
    put_register(m, VIRTIO_MMIO_QUEUE_DESC_HIGH, (uint32_t)(c->desc >> 32));
    put_register(m, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)c->avail);
    put_register(m, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, (uint32_t)(c->avail >> 32));
    put_register(m, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)c->used);
    put_register(m, VIRTIO_MMIO_QUEUE_USED_HIGH, (uint32_t)(c->used >> 32));
    put_register(m, VIRTIO_MMIO_QUEUE_READY, 1);
}
