/* A virtual machine as KVM sees it: memory slots and eventfds. Plain data; it runs nothing.
 *
 * Memory slots are added once, here, before there is a virtual CPU, and never change:
 *     0, 1   guest memory (shared, committed page by page as the guest touches it; anonymous, or a
 *            memfd where other processes serve devices)
 *     2      one page of registers per device, which the guest may read but not write
 */
#pragma once

#include "util/err.h"
#include "virtio/guest_mem.h"

#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vm {
    int kvm_fd; /* /dev/kvm; not owned */
    int fd;
    size_t run_size; /* of what a virtual CPU shares with us */
    uint8_t *ram;    /* all of it, contiguous */
    size_t ram_size;
    int ram_fd; /* the memfd that `ram` maps, in the order of `mem`; -1 = it is anonymous */
    struct guest_mem mem;
    uint8_t *pages; /* registers of the devices */
    size_t pages_size;
    bool readable; /* the guest can read them without an exit */
};

/* On failure, nothing is left behind. */
struct vm_params {
    uint64_t memory_bytes;
    unsigned n_devices;
    bool shared; /* other processes map guest memory */
};
int vm_create(struct vm *vm, int kvm_fd, const struct vm_params *p, struct err *e);
void vm_destroy(struct vm *vm);

/* A guest's write of `value` (4 bytes) to gpa signals fd, without an exit. */
int vm_add_ioeventfd(struct vm *vm, uint64_t gpa, uint32_t value, int fd, struct err *e);
/* Signaling fd interrupts the guest. */
int vm_add_irqfd(struct vm *vm, int fd, unsigned irq, struct err *e);

/* Whether the host has a capability (KVM_CAP_*), and its value. */
int vm_cap(const struct vm *vm, unsigned cap);
