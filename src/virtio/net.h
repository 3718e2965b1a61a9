/* virtio-net: the guest's network card. Its other end is a user of `struct link` (virtio/link.h):
 * the network stack in src/net, or a TAP device (virtio/tap.h).
 *
 * Checksums and segmentation are offloaded both ways and receive buffers are mergeable, so that
 * with an MTU of 1500 one frame moves up to 64 KiB. There is one pair of queues and no control
 * queue. A frame that breaks the rules is dropped and counted; a driver that breaks the rules of
 * its rings gets a broken device.
 */
#pragma once

#include "virtio/device.h"
#include "virtio/link.h"

enum { NET_MTU = 1500 };

struct virtio_net_stats {
    uint64_t rx_frames, rx_bytes; /* to the guest */
    uint64_t tx_frames, tx_bytes; /* from the guest */
    uint64_t rx_large, tx_large;  /* of these, beyond the MTU: segmentation left to the other end */
    uint64_t bad_header;          /* dropped: offloads that were not negotiated or are invalid */
    uint64_t bad_size;            /* dropped: runts and giants */
    uint64_t starved;             /* times there was no receive buffer */
};

int virtio_net_new(struct virtio_dev **ret, const uint8_t mac[6], uint16_t mtu);
/* While it has no user, frames wait in their queue. */
struct link *virtio_net_link(struct virtio_dev *d);
const struct virtio_net_stats *virtio_net_stats(const struct virtio_dev *d);

extern const struct virtio_dev_ops virtio_net_ops;
