/* The vhost-user front end: a device whose queues another process serves.
 *
 * To its transport it is a device like any other, with the features and the configuration of the
 * one behind it. But when a queue starts, its addresses go to that process, which has had the
 * guest's memory and the eventfds of kicks and interrupts from the beginning: from then on guest
 * and server talk directly, and nothing of it passes here.
 *
 * All descriptors are sent before the guest runs, so that a process behind its filter need not be
 * able to send any. A server is not trusted: what it answers is bounded and checked, and what it
 * says out of turn, like its end, breaks the device, which the guest sees.
 *
 * Lives on its loop, like the transport. Invariants:
 *  1. The only answer that is awaited while the guest runs is the one that ends a reset.
 *  2. A device that was reset is settled when the server has let go of all queues, or is gone.
 */
#ifndef MSB_VIRTIO_VHOST_FRONT_H
#define MSB_VIRTIO_VHOST_FRONT_H

#include "util/loop.h"
#include "virtio/device.h"

struct vhost_front_params {
    const struct virtio_dev_ops *kind; /* whose id and number of queues it has */
    int fd;                            /* connected to the server; taken on success */
    const struct guest_mem *mem;
    int mem_fd; /* holds the regions of mem, in their order, without gaps; not owned */
};

/* Asks the server for features and configuration, and gives it the memory: for a moment, this
 * blocks. -ETIMEDOUT if it does not answer, -EPROTO if it is not understood, or -errno. */
int vhost_front_new(struct virtio_dev **ret, struct loop *l, const struct vhost_front_params *p);

#endif
