/* The vhost-user back end: one front end (a user-mode Linux kernel, or a monitor that has one in a
 * virtual machine: vhost_front.h), one device, one loop.
 *
 * The control socket and the kicks are all served on the loop given, so a device needs no locks,
 * and a device whose work may block (blk) is given another thread's loop. Create and free it on
 * that loop's thread, or while that thread is not running.
 *
 * The front end is hostile: every message is bounded and checked, a slow or partial message never
 * blocks the loop, and descriptors that arrive are checked for their kind and closed in every path.
 * A front end that violates the protocol is disconnected.
 */
#pragma once

#include "util/loop.h"
#include "virtio/device.h"

struct vhost_user;

/* Any of them may be NULL. They are called from the loop, never from inside another call, so
 * vhost_user_free() is allowed in them. Reasons are string literals. */
struct vhost_user_events {
    void (*connected)(void *ctx);
    /* The connection has ended: end of file (the guest is gone), or a protocol violation. All rings
     * are stopped and the device is reset. Called once. */
    void (*gone)(void *ctx, const char *reason);
    /* The driver broke the device; the rings are dead, the connection is still there. */
    void (*broken)(void *ctx, const char *reason);
};

/* Accepts exactly one front end on listen_fd, which is then closed. On success listen_fd belongs to
 * the back end. `dev` is attached here and detached by vhost_user_free; it is not owned. */
int vhost_user_new(struct vhost_user **ret, struct loop *l, struct virtio_dev *dev, int listen_fd,
                   const struct vhost_user_events *ev, void *ctx);
/* The same with a socket that is connected already. */
int vhost_user_new_connected(struct vhost_user **ret, struct loop *l, struct virtio_dev *dev,
                             int fd, const struct vhost_user_events *ev, void *ctx);
/* Also accepts eventfds for interrupts and for reports of broken rings. For a front end that cannot
 * make them blocking later: a monitor, whose seccomp filter forbids that. */
void vhost_user_take_eventfds(struct vhost_user *v);
void vhost_user_free(struct vhost_user *v);
