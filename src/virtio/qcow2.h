/* qcow2 images, for reading: which part of the file is which part of the disk.
 *
 * The file may be anybody's. Its tables are read once, in the monitor's jail, and turned into segments
 * of a read-only virtio-blk device, which checks them against the file once more; nothing in it can
 * lead to another file, and none is ever written. What refers to others or needs more than a look at
 * tables (backing files, encryption, compression, data in another file) is refused.
 */
#pragma once

#include "virtio/blk.h"

/* malloc'd segments that make up the disk, runs of zeros included. -EINVAL, or another error, with
 * *why: what is the matter with the image, as the end of a sentence. */
int qcow2_segments(int fd, struct blk_segment **ret, size_t *n, const char **why);
