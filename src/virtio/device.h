/* What a virtio device is to its transport, and a transport to its device.
 *
 * A device is one file that fills in `struct virtio_dev_ops`; it never learns whether it sits
 * behind vhost-user or virtio-mmio. A transport drives any device through these ops; it never
 * learns what the device does. In between is `struct virtio_dev`: plain data, no hidden state.
 *
 * The life of a device:
 *   virtio_xxx_new() -> virtio_dev_attach() by the transport -> features are negotiated ->
 *   virtio_dev_start_queue() for each queue -> virtio_dev_kick() ... -> virtio_dev_stop_queue() ->
 *   (when the last queue stopped, ops->reset) -> virtio_dev_detach() -> virtio_dev_free().
 *
 * All of it happens on the thread of the transport's loop, without locks. Guest memory is reached
 * only through the queues, and no pointer into it survives a call, so a stopped queue leaves
 * nothing dangling.
 *
 * A guest that breaks the rules gets a broken device: virtio_dev_break() stops all its queues and
 * tells the transport once, with the reason. Only a reset (all queues stopped, then started again)
 * brings it back. The process goes on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "virtio/queue.h"

enum { VIRTIO_QUEUES_MAX = 8 };

/* Offered by every device; the transport adds its own on top. */
#define VIRTIO_BASE_FEATURES ((1ULL << 32) /* VERSION_1 */ | (1ULL << 29) | (1ULL << 28))

struct virtio_dev;

/* ops->kick says when it wants to be called again: */
enum { VIRTIO_IDLE = -1 /* not before the driver kicks */ };

struct virtio_dev_ops {
    const char *name;
    uint32_t id; /* VIRTIO_ID_* */
    unsigned n_queues;

    /* The driver added buffers to the queue, or the queue was just started, or the time that an
     * earlier call asked for has come. Does a bounded amount of work. Returns VIRTIO_IDLE, or after
     * how many nanoseconds to call again (0: in the next turn of the loop). */
    int64_t (*kick)(struct virtio_dev *d, unsigned queue);
    /* Optional: the driver wrote [off, off+len) of the configuration, which is inside it. */
    void (*config_written)(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len);
    /* Optional: all queues are stopped; forgets the driver's state. */
    void (*reset)(struct virtio_dev *d);
    void (*free)(struct virtio_dev *d);

    /* Both or neither, for queues that another process serves (vhost_front.h). The transport then
     * does not watch kicks, and calls `kick` only when a queue starts. */

    /* Hands that process the eventfd for each queue's kicks, and the one that interrupts the
     * driver. Called once, before the guest runs. */
    int (*wire)(struct virtio_dev *d, const int *kick_fds, int call_fd);
    /* After a reset: whether that process may still be using the queues. transport->settled()
     * follows. */
    bool (*busy)(const struct virtio_dev *d);
};

/* Given to the device by its transport. */
struct virtio_transport {
    void (*interrupt)(struct virtio_transport *t, unsigned queue);
    /* The device broke. Only note it here: this is called from deep inside device code. */
    void (*broken)(struct virtio_transport *t, const char *reason);
    /* Call virtio_dev_kick(queue) from the loop, after so many nanoseconds. */
    void (*kick_later)(struct virtio_transport *t, unsigned queue, uint64_t delay_ns);
    /* A device that was busy after its reset no longer is. NULL: the device's `wire` is never
     * called. */
    void (*settled)(struct virtio_transport *t);
};

/* Embedded as the first member of each device's own struct. */
struct virtio_dev {
    const struct virtio_dev_ops *ops;
    struct virtio_transport *transport; /* NULL when detached */
    uint64_t features;                  /* offered */
    uint64_t acked;                     /* negotiated: a subset */
    void *config;                       /* device configuration space, little endian */
    uint32_t config_len;
    const char *broken; /* NULL, or the reason (a string literal) */
    uint64_t ignored;   /* writes by the driver that were refused because queues were running */
    struct virtq vq[VIRTIO_QUEUES_MAX];
};

/* --- for transports ------------------------------------------------------------------------- */

void virtio_dev_attach(struct virtio_dev *d, struct virtio_transport *t);
/* Stops all queues, resets the device, forgets the transport. */
void virtio_dev_detach(struct virtio_dev *d);
/* -EBUSY while a queue runs, -EINVAL for bits not offered. */
int virtio_dev_set_features(struct virtio_dev *d, uint64_t acked);
/* The ring features in cfg are filled in from `acked`. -EBUSY if it is running, -EINVAL (and the
 * device is broken) if the configuration is invalid. Kicks the device once the queue is running. */
int virtio_dev_start_queue(struct virtio_dev *d, unsigned queue, const struct guest_mem *mem,
                           const struct virtq_config *cfg);
/* Stopping the last running queue resets the device and repairs a broken one. */
void virtio_dev_stop_queue(struct virtio_dev *d, unsigned queue);
bool virtio_dev_running(const struct virtio_dev *d); /* any queue */
/* Calls ops->kick and schedules the next call as it asks. Ignored for a queue that is not
 * running. */
void virtio_dev_kick(struct virtio_dev *d, unsigned queue);
/* Any offset, any length: anything outside reads as zero and cannot be written (-ERANGE). */
void virtio_dev_config_read(const struct virtio_dev *d, uint32_t off, void *p, uint32_t len);
int virtio_dev_config_write(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len);

/* --- for devices ---------------------------------------------------------------------------- */

static inline bool virtio_dev_has(const struct virtio_dev *d, unsigned bit)
{
    return d->acked >> bit & 1;
}
/* Like virtq_pop(); a broken queue breaks the device. */
int virtio_dev_pop(struct virtio_dev *d, unsigned queue, struct virtq_chain *c);
/* For a device that answers each request at once: pops, has `serve` use and push the chain *c, and
 * interrupts, until nothing is left or this turn's share is done. serve returns the bytes it moved.
 * The result is what ops->kick should return. */
typedef size_t (*virtio_serve_fn)(struct virtio_dev *d, unsigned queue);
int64_t virtio_dev_serve(struct virtio_dev *d, unsigned queue, struct virtq_chain *c,
                         virtio_serve_fn serve);
/* Interrupts the driver if it wants that for what was pushed. */
void virtio_dev_interrupt(struct virtio_dev *d, unsigned queue);
/* Only the first reason is kept. reason is a string literal. */
void virtio_dev_break(struct virtio_dev *d, const char *reason);

/* --- for owners ----------------------------------------------------------------------------- */

/* The transport must have been freed before. d may be NULL. */
void virtio_dev_free(struct virtio_dev *d);
