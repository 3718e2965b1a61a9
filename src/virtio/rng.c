#include "virtio/rng.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <sys/random.h>

#include "util/bucket.h"
#include "util/cleanup.h"
#include "util/loop.h"

/* #syscalls:monitor getrandom clock_gettime */

enum {
    REQUEST_COST = 64, /* the minimum cost of a request, however small: bounds their number */
};

struct rng {
    struct virtio_dev dev;
    struct bucket bytes;
    struct virtq_chain chain;
};

/* Fills one buffer and returns what that cost. */
static uint64_t serve(struct rng *r)
{
    uint8_t bytes[RNG_REQUEST_MAX];
    size_t want = MIN(r->chain.in_len, sizeof(bytes));
    ssize_t got = want > 0 ? getrandom(bytes, want, 0) : 0;
    size_t n = got > 0 ? (size_t)got : 0;
    n = virtq_chain_write(&r->chain, 0, bytes, n);
    virtq_push(&r->dev.vq[0], &r->chain, (uint32_t)n);
    return MAX(n, (size_t)REQUEST_COST);
}

static int64_t rng_kick(struct virtio_dev *d, unsigned queue)
{
    struct rng *r = CONTAINER_OF(d, struct rng, dev);
    struct virtq *q = &d->vq[queue];
    int64_t again = VIRTIO_IDLE;
    int got;

    uint64_t left = bucket_level(&r->bytes, now_ns());
    do {
        virtq_notify_off(q);
        got = 0;
        if (left < RNG_REQUEST_MAX) {
            again = (int64_t)RNG_REQUEST_MAX * 1000000000LL / RNG_PER_SECOND;
            break;
        }
        while (left >= RNG_REQUEST_MAX && (got = virtio_dev_pop(d, queue, &r->chain)) > 0) {
            uint64_t cost = serve(r);
            bucket_take(&r->bytes, cost);
            left -= MIN(cost, left);
        }
    } while (got >= 0 && virtq_notify_on(q));
    virtio_dev_interrupt(d, queue);
    return again;
}

static void rng_free(struct virtio_dev *d)
{
    free(CONTAINER_OF(d, struct rng, dev));
}

const struct virtio_dev_ops virtio_rng_ops = {
    .name = "rng",
    .id = VIRTIO_ID_RNG,
    .n_queues = 1,
    .kick = rng_kick,
    .free = rng_free,
};

int virtio_rng_new(struct virtio_dev **ret)
{
    struct rng *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->dev.ops = &virtio_rng_ops;
    r->dev.features = VIRTIO_BASE_FEATURES;
    bucket_init(&r->bytes, RNG_PER_SECOND, 1000000000ULL, RNG_BURST, 0, now_ns());
    *ret = &r->dev;
    return 0;
}
