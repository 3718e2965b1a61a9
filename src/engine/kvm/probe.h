/* Can this host's KVM run a guest kernel? Opening /dev/kvm proves little: there are hosts whose
 * /dev/kvm answers every call, and then emulates kernel mode at a million instructions a second. So
 * a probe VM runs a million instructions of kernel mode, in a process of its own, against a
 * deadline.
 *
 * Making a VM takes some milliseconds, a slow one takes the whole deadline; so the verdict is
 * remembered, in a file of the user's own (~/.cache/msb/kvm-probe), for this boot of the host and
 * this very device. A file or directory that anybody else could have written is not used.
 */
#ifndef MSB_ENGINE_KVM_PROBE_H
#define MSB_ENGINE_KVM_PROBE_H

#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

enum kvm_verdict {
    KVM_NATIVE,  /* kernel mode runs at the speed of the CPU */
    KVM_SLOW,    /* ... at the speed of an emulator */
    KVM_NOT_RUN, /* a probe VM could not be made, or did not run: see the error */
};

struct kvm_probe {
    enum kvm_verdict verdict;
    uint64_t insns_per_s; /* 0: it did not finish in time */
};

/* Opens /dev/kvm for reading and writing, close-on-exec. The error says whom to ask, and what. */
int kvm_device_open(int *ret_fd, struct err *e);

/* fresh: whatever is remembered, probe. */
void kvm_probe(int kvm_fd, bool fresh, struct kvm_probe *ret, struct err *e);

/* "at 1 million instructions a second", for people. */
void kvm_probe_speed(const struct kvm_probe *p, char *to, unsigned size);

/* For tests: where the device is. NULL brings /dev/kvm back. */
void kvm_device_path(const char *path);

#endif
