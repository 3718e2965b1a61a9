/* virtio-balloon: memory that the guest does not need goes back to the host.
 *
 * The guest reports its free pages (free page reporting), and we tell the host to drop what is
 * behind them; when the guest uses them again they are fresh zeros. Nothing is ever asked of the
 * guest: the target size of the balloon is always zero. A guest that fills its balloon all the same
 * gives pages away, no more, and takes them back whenever it likes (deflate on OOM).
 *
 * Guest memory must be mapped shared without a file of somebody else's behind it, or privately:
 * pages are dropped with MADV_REMOVE and MADV_DONTNEED. Pages that a private mapping has of its
 * file read as that file again.
 */
#ifndef MSB_VIRTIO_BALLOON_H
#define MSB_VIRTIO_BALLOON_H

#include "virtio/device.h"

struct balloon_stats {
    uint64_t reported; /* bytes given back by free page reporting */
    uint64_t inflated; /* ... by filling the balloon */
    uint64_t refused;  /* ranges that were outside guest memory, or no whole pages */
};

int virtio_balloon_new(struct virtio_dev **ret);
void virtio_balloon_stats(const struct virtio_dev *d, struct balloon_stats *ret); /* any thread */

extern const struct virtio_dev_ops virtio_balloon_ops;

#endif
