/* A split virtqueue, device side, safe against a hostile driver.
 *
 * The transport starts a queue with a configuration that is checked once and then latched: nothing
 * the guest does later moves the rings. The device pops chains, uses them and pushes them back; a
 * chain is a list of host iovecs, each already checked to lie in guest memory. On the first
 * violation of the protocol the queue is broken until it is started again: every call
 * becomes a no-op and `broken` says why.
 *
 * Usage, with notifications (interrupts are virtio_dev_interrupt's job):
 *
 *     do {
 *         virtq_notify_off(q);
 *         while ((r = virtq_pop(q, &chain)) > 0) { ...; virtq_push(q, &chain, written); }
 *     } while (r == 0 && virtq_notify_on(q));
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "virtio/guest_mem.h"

enum {
    VIRTQ_SIZE_MAX = 256,  /* entries; what transports offer and accept */
    VIRTQ_CHAIN_MAX = 256, /* descriptors in one chain, indirect ones included */
};

struct vring_desc;
struct vring_avail;
struct vring_used;

struct virtq_config {
    uint16_t size;              /* a power of two up to VIRTQ_SIZE_MAX */
    uint16_t next_avail;        /* first avail index to serve; 0 for a fresh queue */
    uint64_t desc, avail, used; /* guest physical addresses */
    bool event_idx, indirect;   /* negotiated ring features */
};

struct virtq {
    const struct guest_mem *mem; /* of the transport; outlives the running queue */
    struct virtq_config cfg;     /* latched by virtq_start */
    struct vring_desc *desc;     /* shared with the guest; the whole rings were checked */
    struct vring_avail *avail;
    struct vring_used *used;
    uint16_t next_avail; /* next avail entry to pop */
    uint16_t next_used;  /* next used entry to fill */
    uint16_t signaled;   /* next_used when the driver was last told */
    uint32_t popped;     /* chains that the device holds: popped and not given back */
    bool signaled_valid; /* false: notify it in any case */
    bool running;
    const char *broken; /* NULL, or why (a string literal) */
};

/* iov[0 .. n_out) is what the driver wrote for us, iov[n_out .. n_out+n_in) is ours to fill. */
struct virtq_chain {
    uint16_t head;
    uint16_t n_out, n_in;
    size_t out_len, in_len; /* bytes in each part */
    struct iovec iov[VIRTQ_CHAIN_MAX];
};

static inline const struct iovec *virtq_out(const struct virtq_chain *c)
{
    return c->iov;
}
static inline const struct iovec *virtq_in(const struct virtq_chain *c)
{
    return c->iov + c->n_out;
}

/* 0, or -EINVAL with *ret_why (may be NULL) set to a string literal; the queue is then stopped. */
int virtq_start(struct virtq *q, const struct guest_mem *mem, const struct virtq_config *cfg,
                const char **ret_why);
void virtq_stop(struct virtq *q);

/* 1: *c is filled in; 0: the queue is empty, or not running; -EPROTO: the queue broke (see
 * q->broken).
 */
int virtq_pop(struct virtq *q, struct virtq_chain *c);
/* The same for a chain, given by its head, that was popped before and not given back: for a device
 * that cannot keep pointers into guest memory. Changes made by the driver since then take
 * effect. */
int virtq_again(struct virtq *q, uint16_t head, struct virtq_chain *c);
/* Whether virtq_pop would find something now. Also true for an invalid index, so that virtq_pop
 * sees it. */
bool virtq_pending(const struct virtq *q);
/* Gives the chain back; `written` bytes of its `in` part are filled, from the start. */
void virtq_push(struct virtq *q, const struct virtq_chain *c, uint32_t written);
/* The same in two steps, for what the driver must see all at once or not at all: several chains are
 * given back, then all of them are published. */
void virtq_put(struct virtq *q, uint16_t head, uint32_t written);
void virtq_show(struct virtq *q);
/* Takes back the last n pops, whose chains were not used. */
void virtq_unpop(struct virtq *q, uint16_t n);
/* Whether the driver wants to be interrupted for what was pushed since the last call. */
bool virtq_should_interrupt(struct virtq *q);

/* Asks the driver not to kick for now; a hint. */
void virtq_notify_off(struct virtq *q);
/* Asks for a kick at the next addition. True: something was added before that took effect. */
bool virtq_notify_on(struct virtq *q);

/* Copy out of / into a chain with bounds; return the bytes copied. */
size_t virtq_chain_read(const struct virtq_chain *c, size_t off, void *dst, size_t len);
size_t virtq_chain_write(const struct virtq_chain *c, size_t off, const void *src, size_t len);
