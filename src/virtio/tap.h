/* A network card whose far end is a TAP device: frames pass as they are, with their offload headers.
 *
 * Nothing here looks into a frame: what it may contain and where it may go is decided by whatever the
 * device leads to. From the guest, a frame is one writev() from its memory; what the device does not
 * take is dropped, as on a wire. To the guest, one frame is read ahead; while the driver has no room
 * for it the device is not read, and its queue drops what it cannot hold.
 */
#pragma once

#include "util/loop.h"
#include "virtio/link.h"

struct tap;

/* The descriptor is non-blocking, with a struct virtio_net_hdr before each frame and offloads of sums
 * and TCP segmentation; it stays the caller's. The card is served on `loop`, too. */
int tap_new(struct tap **ret, struct loop *loop, struct link *card, int fd);
void tap_free(struct tap *t);
