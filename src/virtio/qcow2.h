/* qcow2 images, for reading: maps parts of the disk to parts of the file.
 *
 * The file is not trusted. Its tables are read once, in the monitor's jail, and turned into
 * segments of a read-only virtio-blk device, which checks them against the file once more; nothing
 * in it can lead to another file, and none is ever written. Images that refer to other files or
 * need more than table lookups (backing files, encryption, compression, external data) are refused.
 */
#pragma once

#include "virtio/blk.h"

/* malloc'd segments that make up the disk, runs of zeros included. -EINVAL, or another error, with
 * *why set to what is wrong with the image, as the end of a sentence. */
int qcow2_segments(int fd, struct blk_segment **ret, size_t *n, const char **why);
