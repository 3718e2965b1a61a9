/* The virtio-mmio transport, version 2: one device, one page of registers.
 *
 * The guest reads its registers from that page as it reads memory (the engine maps it read-only),
 * so no read stops a virtual CPU or runs our code: a register's value is stored there when it
 * changes. Only writes arrive here, on the virtual CPU's thread.
 *
 * A device lives on its loop's thread and takes no locks. So a write that concerns only registers
 * is done at once, under the transport's lock; what concerns the device (start, reset, a write to
 * its configuration) is handed to its loop, and the virtual CPU waits for it. Kicks do not come
 * this way: each queue has an eventfd, which KVM signals and the loop watches.
 *
 * A device that another process serves (ops->wire) is instead given the eventfds, for kicks and for
 * its interrupt, and its reset takes as long as that process needs: the virtual CPU waits, the loop
 * keeps running. The used-buffer bit of InterruptStatus is set as long as such a device is live.
 *
 * Queue configuration is latched at DRIVER_OK. Later writes to it are ignored and counted; a reset
 * is the only way back.
 *
 * A driver looks at all its queues on an interrupt anyway, so an engine may swallow an
 * acknowledgement of only the used-buffer bit (MMIO_ACK_USED), which saves an exit per interrupt.
 * The bit then stays set until the device is reset.
 */
#pragma once

#include "util/loop.h"
#include "virtio/device.h"

enum {
    MMIO_PAGE = 4096,   /* of registers, per device */
    MMIO_NOTIFY = 0x50, /* where the number of a queue is written to kick it */
    MMIO_ACK = 0x64,    /* where interrupts are acknowledged */
    MMIO_ACK_USED = 1,  /* ... those for used buffers */
};

struct mmio;

/* Any of them may be NULL. Called on the device's loop. */
struct mmio_events {
    /* The driver broke the device. reason is a string literal. */
    void (*broken)(void *ctx, const char *reason);
    /* The driver started the device, or reset it. */
    void (*live)(void *ctx, bool live);
};

struct mmio_stats {
    uint64_t writes;  /* of registers */
    uint64_t ignored; /* of these: invalid, or too late */
};

/* `mem` and `page` (MMIO_PAGE bytes) outlive the transport. `dev` is attached here and detached by
 * mmio_free; it is not owned. Create and free it on the loop's thread, or while that is not
 * running, and no virtual CPU either. */
int mmio_new(struct mmio **ret, struct loop *l, struct virtio_dev *dev, const struct guest_mem *mem,
             void *page, const struct mmio_events *ev, void *ctx);
void mmio_free(struct mmio *m);

/* The descriptors for KVM: it signals one for a kick; we signal the other for an interrupt. */
int mmio_kick_fd(const struct mmio *m, unsigned queue);
int mmio_irq_fd(const struct mmio *m);

/* From any thread: the guest accessed [off, off+len) of the page. Reads outside of it return all
 * ones; writes are ignored. A write may wait for the device's loop. */
void mmio_read(const struct mmio *m, uint64_t off, void *p, unsigned len);
void mmio_write(struct mmio *m, uint64_t off, const void *p, unsigned len);
/* From any thread: waiters return, and writes have no effect from now on. Used at the guest's
 * end. */
void mmio_cancel(struct mmio *m);

void mmio_stats(struct mmio *m, struct mmio_stats *ret); /* from any thread */
