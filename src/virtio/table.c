/* The devices there are. A new one is one file and one line here. */
#include <stddef.h>

#include "virtio/balloon.h"
#include "virtio/blk.h"
#include "virtio/device.h"
#include "virtio/fs.h"
#include "virtio/net.h"
#include "virtio/rng.h"
#include "virtio/vsock.h"

const struct virtio_dev_ops *const virtio_dev_table[] = {
    &virtio_balloon_ops, &virtio_blk_ops,   &virtio_fs_ops, &virtio_net_ops,
    &virtio_rng_ops,     &virtio_vsock_ops, NULL,
};
