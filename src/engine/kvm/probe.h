/* Can this host's KVM run a guest kernel? Opening /dev/kvm proves little: on some hosts it answers
 * every call, but then emulates kernel mode at a million instructions a second. So a probe VM runs
 * a million instructions of kernel mode, in a separate process, against a deadline.
 *
 * Creating a VM takes a few milliseconds, and a slow one takes the whole deadline, so the verdict
 * is cached in the user's ~/.cache/msb/kvm-probe for this boot of the host and this device. A file
 * or directory that others could have written to is not used.
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

enum kvm_verdict {
    KVM_NATIVE,  /* kernel mode runs at the CPU's speed */
    KVM_SLOW,    /* ... at an emulator's speed */
    KVM_NOT_RUN, /* a probe VM could not be created, or did not run: see the error */
};

struct kvm_probe {
    enum kvm_verdict verdict;
    uint64_t insns_per_s; /* 0: it did not finish in time */
};

/* Opens /dev/kvm for reading and writing, close-on-exec. The error's hint tells the user what to
 * do. */
int kvm_device_open(int *ret_fd, struct err *e);

/* fresh: ignore the cached verdict. */
void kvm_probe(int kvm_fd, bool fresh, struct kvm_probe *ret, struct err *e);

/* For the user: "at 1 million instructions a second". */
void kvm_probe_speed(const struct kvm_probe *p, char *to, unsigned size);

/* For tests: where the device is; NULL restores /dev/kvm. */
void kvm_device_path(const char *path);
