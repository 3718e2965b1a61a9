#include "virtio/balloon.h"

#include <errno.h>
#include <linux/virtio_balloon.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/cleanup.h"
#include "util/loop.h"

/* #syscalls:monitor madvise */

enum {
    /* A driver that was not offered statistics or hinting gives its reporting queue the number
     * after the two that always exist. */
    INFLATE,
    DEFLATE,
    REPORT,
    QUEUES,
};

enum {
    CHAINS_PER_TURN = 16,
    PFNS_MAX = 1024, /* of one buffer; a driver sends 256 */
    PFN_SHIFT = 12,
    PAGE = 1 << PFN_SHIFT,
};

struct balloon {
    struct virtio_dev dev;
    struct virtio_balloon_config config;
    struct balloon_stats stats;
    struct virtq_chain chain;
    uint32_t pfn[PFNS_MAX];
};

/* Drops the whole pages of [p, p+len), which is inside guest memory. */
static void drop(struct balloon *b, void *p, size_t len, uint64_t *counter)
{
    uintptr_t from = ((uintptr_t)p + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)p + len) & ~(uintptr_t)(PAGE - 1);
    /* Shared memory is removed; a private mapping's changes to its file are dropped. */
    if (from < to && (madvise((void *)from, to - from, MADV_REMOVE) == 0 ||
                      madvise((void *)from, to - from, MADV_DONTNEED) == 0))
        *counter += to - from;
    else
        b->stats.refused++;
}

static void report(struct balloon *b)
{
    for (unsigned i = 0; i < b->chain.n_in; i++) {
        const struct iovec *v = &virtq_in(&b->chain)[i];
        drop(b, v->iov_base, v->iov_len, &b->stats.reported);
    }
}

/* Page numbers, which drivers send in descending order; runs in either direction are handled at
 * once. */
static void inflate(struct balloon *b)
{
    size_t n = virtq_chain_read(&b->chain, 0, b->pfn, sizeof(b->pfn)) / sizeof(b->pfn[0]);
    for (size_t i = 0; i < n;) {
        size_t run = 1;
        while (i + run < n && b->pfn[i + run] == b->pfn[i] + run)
            run++;
        size_t back = 1;
        while (run == 1 && i + back < n && b->pfn[i + back] == b->pfn[i] - back)
            back++;
        uint64_t first = b->pfn[i] - (back - 1);
        size_t pages = MAX(run, back);
        void *p =
            guest_mem_ptr(b->dev.vq[INFLATE].mem, first << PFN_SHIFT, (uint64_t)pages << PFN_SHIFT);
        if (p)
            drop(b, p, pages << PFN_SHIFT, &b->stats.inflated);
        else
            b->stats.refused++;
        i += pages;
    }
}

static int64_t balloon_kick(struct virtio_dev *d, unsigned queue)
{
    struct balloon *b = CONTAINER_OF(d, struct balloon, dev);
    struct virtq *q = &d->vq[queue];
    unsigned budget = CHAINS_PER_TURN;
    int got = 0;
    do {
        virtq_notify_off(q);
        while (budget > 0 && (got = virtio_dev_pop(d, queue, &b->chain)) > 0) {
            if (queue == REPORT)
                report(b);
            else if (queue == INFLATE)
                inflate(b);
            virtq_push(q, &b->chain, 0);
            budget--;
        }
    } while (budget > 0 && got == 0 && virtq_notify_on(q));
    virtio_dev_interrupt(d, queue);
    return budget > 0 ? VIRTIO_IDLE : 0;
}

/* The driver may set `actual`, but not the target size. */
static void balloon_config_written(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    struct balloon *b = CONTAINER_OF(d, struct balloon, dev);
    if (off == offsetof(struct virtio_balloon_config, actual) && len == sizeof(b->config.actual))
        memcpy(&b->config.actual, p, len);
}

static void balloon_reset(struct virtio_dev *d)
{
    CONTAINER_OF(d, struct balloon, dev)->config.actual = 0;
}

static void balloon_free(struct virtio_dev *d)
{
    free(CONTAINER_OF(d, struct balloon, dev));
}

void virtio_balloon_stats(const struct virtio_dev *d, struct balloon_stats *ret)
{
    *ret = CONTAINER_OF(d, const struct balloon, dev)->stats;
}

const struct virtio_dev_ops virtio_balloon_ops = {
    .name = "balloon",
    .id = VIRTIO_ID_BALLOON,
    .n_queues = QUEUES,
    .kick = balloon_kick,
    .config_written = balloon_config_written,
    .reset = balloon_reset,
    .free = balloon_free,
};

int virtio_balloon_new(struct virtio_dev **ret)
{
    struct balloon *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->dev.ops = &virtio_balloon_ops;
    b->dev.features = VIRTIO_BASE_FEATURES | 1ULL << VIRTIO_BALLOON_F_DEFLATE_ON_OOM |
                      1ULL << VIRTIO_BALLOON_F_REPORTING;
    b->dev.config = &b->config;
    /* Includes the two fields that are set: what follows belongs to features that are not
     * offered. */
    b->dev.config_len = offsetof(struct virtio_balloon_config, actual) + sizeof(b->config.actual);
    *ret = &b->dev;
    return 0;
}
