/* virtio-rng: the host's random numbers, at a limited rate, which bounds the host's CPU time. */
#pragma once

#include "virtio/device.h"

enum {
    RNG_REQUEST_MAX = 4096,   /* bytes given for one buffer; the driver asks again */
    RNG_BURST = 64 * 1024,    /* bytes available at once */
    RNG_PER_SECOND = 1 << 20, /* bytes per second in the long run */
};

int virtio_rng_new(struct virtio_dev **ret);

extern const struct virtio_dev_ops virtio_rng_ops;
