/* virtio-blk: a disk stitched together from pieces of host files.
 *
 * An image's layers are stored once each on the host and shared by its page cache; the guest sees
 * one disk, however many files it is made of. Data moves by preadv/pwritev straight into and out of
 * guest memory. I/O is synchronous: give the device the loop of a separate thread.
 *
 * Read-only is a property of the host: such a device has no code path that writes, and its files
 * should be open for reading only. Only a disk of one segment can be writable.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "virtio/device.h"

enum { BLK_SEGMENTS_MAX = 1 << 20, BLK_SERIAL_LEN = 20 };

struct blk_segment {
    int fd; /* not owned; -1: a run of zeros */
    uint64_t offset, length;
};

struct blk_stats {
    uint64_t reads, writes, discards, errors;
    uint64_t flushes, syncs; /* requested by the driver; done on the file */
    uint64_t read_bytes, written_bytes;
};

/* The segments follow each other in the order given; the list is copied. A total length that is not
 * a multiple of 512 is padded with zeros (read-only disks; -EINVAL for a writable one). serial (may
 * be NULL) is truncated to BLK_SERIAL_LEN bytes. -EINVAL also if a file is shorter than its
 * segment. */
int virtio_blk_new(struct virtio_dev **ret, const struct blk_segment *seg, size_t n, bool read_only,
                   const char *serial);
/* Offers the driver no way to sync: writes reach the host's memory, and no more is promised. Call
 * it before a transport is attached. */
void virtio_blk_never_sync(struct virtio_dev *d);
/* From any thread. */
void virtio_blk_stats(const struct virtio_dev *d, struct blk_stats *ret);

extern const struct virtio_dev_ops virtio_blk_ops;
