/* Connects a network card to a TAP device: frames pass unchanged, with their offload headers.
 *
 * Nothing here inspects frames: what they may contain and where they may go is decided by whatever
 * the device leads to. From the guest, a frame is one writev() from its memory; what the device
 * does not take is dropped, as on a wire. To the guest, one frame is read ahead; while the driver
 * has no room for it, the device is not read, and its queue drops what it cannot hold.
 */
#pragma once

#include "util/loop.h"
#include "virtio/link.h"

struct tap;

/* The descriptor is non-blocking, with a struct virtio_net_hdr before each frame and offloads for
 * checksums and TCP segmentation; it stays the caller's. The card is served on `loop`, too. */
int tap_new(struct tap **ret, struct loop *loop, struct link *card, int fd);
/* Only tests need it: a monitor has its TAP device until it exits. */
void tap_free(struct tap *t);
