/* The vhost-user front end: a device whose queues another process serves.
 *
 * To its transport, it is a device like any other, with the features and configuration of the real
 * one. But when a queue starts, its addresses go to that process, which already has the guest's
 * memory and the eventfds for kicks and interrupts; from then on, guest and server talk directly.
 *
 * All descriptors are sent before the guest runs, so that our seccomp filter need not allow sending
 * any. The server is not trusted: its answers are bounded and checked. An unexpected message, or
 * its end, breaks the device, which the guest sees.
 *
 * Lives on its loop, like the transport. Invariants:
 *  1. The only reply that is awaited while the guest runs is the one that completes a reset.
 *  2. A device that was reset has settled when the server has released all queues, or is gone.
 */
#pragma once

#include "util/loop.h"
#include "virtio/device.h"

struct vhost_front_params {
    const struct virtio_dev_ops *kind; /* its id and number of queues are used */
    int fd;                            /* connected to the server; taken on success */
    const struct guest_mem *mem;
    int mem_fd; /* holds the regions of mem, in their order, without gaps; not owned */
};

/* Asks the server for features and configuration, and gives it the memory; blocks meanwhile.
 * -ETIMEDOUT if it does not answer, -EPROTO if the answer is invalid, or -errno. */
int vhost_front_new(struct virtio_dev **ret, struct loop *l, const struct vhost_front_params *p);
