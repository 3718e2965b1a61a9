/* virtio-balloon: returns memory that the guest does not need to the host.
 *
 * The guest reports its free pages (free page reporting), and the host drops the memory behind
 * them; when the guest uses them again, they are zeros. The guest is never asked for memory: the
 * target size of the balloon is always zero. A guest that inflates its balloon anyway only gives
 * pages away, and may take them back at any time (deflate on OOM).
 *
 * Guest memory must be mapped shared from one of our files, or privately: pages are dropped with
 * MADV_REMOVE and MADV_DONTNEED. In a private mapping, they then read as the file's content again.
 */
#pragma once

#include "virtio/device.h"

struct balloon_stats {
    uint64_t reported; /* bytes given back by free page reporting */
    uint64_t inflated; /* ... by filling the balloon */
    uint64_t refused;  /* ranges outside guest memory, or less than a page */
};

int virtio_balloon_new(struct virtio_dev **ret);
/* Only tests ask: a monitor has no use for them. */
void virtio_balloon_stats(const struct virtio_dev *d, struct balloon_stats *ret);

extern const struct virtio_dev_ops virtio_balloon_ops;
