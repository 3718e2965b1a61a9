/* virtio-fs: a host directory as a FUSE file system of the guest.
 *
 * Requests go to a FUSE server (fuse/fuse.h); the device knows nothing about files. The first queue
 * is for urgent requests (FORGET), the second for the rest. Serving is synchronous, except for
 * requests that wait for content from elsewhere: give the device its own loop.
 */
#pragma once

#include "fuse/fuse.h"
#include "virtio/device.h"

enum { FS_TAG_MAX = 36, VIRTIO_FS_TAG_TEXT = 16 };

/* tag: the name by which the guest mounts it, at most FS_TAG_MAX bytes. The server belongs to the
 * device if this succeeds. */
int virtio_fs_new(struct virtio_dev **ret, struct fuse_server *server, const char *tag);

/* After fuse_later_event(): serves the requests that waited for it. */
void virtio_fs_resume(struct virtio_dev *d);

/* The tag of the sandbox's share `index`. */
void virtio_fs_tag(size_t index, char out[VIRTIO_FS_TAG_TEXT]);

extern const struct virtio_dev_ops virtio_fs_ops;
