/* A KVM of the test's own behind kvm_ioctl(): it makes descriptors, remembers what it was told, and
 * its virtual CPUs run a script. The n-th call can be made to fail. Header only. */
#pragma once

#include <errno.h>
#include <linux/kvm.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/kvm/sys.h"

enum { FAKE_RUN_SIZE = 12288, FAKE_CPUS = 64, FAKE_SLOTS = 8 };

/* What a virtual CPU does when it is run: fills in *run and returns 0, or -errno. */
typedef int (*fake_script)(unsigned cpu, unsigned step, struct kvm_run *run);

static struct fake_kvm {
    _Atomic unsigned calls; /* all that came before the guest ran */
    unsigned fail_at;       /* this one fails; 0 = none */
    int fail_with;
    unsigned long failed; /* the request that did */
    fake_script script;
    unsigned n_cpus, n_slots, ioeventfds, irqfds;
    struct kvm_userspace_memory_region slot[FAKE_SLOTS];
    struct kvm_run *run[FAKE_CPUS];
    int cpu_fd[FAKE_CPUS];
    _Atomic unsigned step[FAKE_CPUS];
    struct kvm_regs regs;
    uint32_t mp_state;
} fk;

/* Waits as a CPU that has nothing to do: until it is told to come back. */
static inline int fake_wait(struct kvm_run *run)
{
    while (!__atomic_load_n(&run->immediate_exit, __ATOMIC_SEQ_CST))
        (void)usleep(200);
    return -EINTR;
}

static inline int fake_vcpu(void)
{
    unsigned i = fk.n_cpus++;
    int fd = memfd_create("vcpu", MFD_CLOEXEC);
    if (i >= FAKE_CPUS || fd < 0 || ftruncate(fd, FAKE_RUN_SIZE) < 0)
        abort();
    fk.cpu_fd[i] = fd;
    fk.run[i] = mmap(NULL, FAKE_RUN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return fd;
}

static inline int fake_run(int fd)
{
    for (unsigned i = 0; i < fk.n_cpus; i++)
        if (fk.cpu_fd[i] == fd) {
            if (__atomic_load_n(&fk.run[i]->immediate_exit, __ATOMIC_SEQ_CST))
                return -EINTR;
            return fk.script(i, fk.step[i]++, fk.run[i]);
        }
    return -EBADF;
}

static inline int fake_cpuid(struct kvm_cpuid2 *c)
{
    static const struct kvm_cpuid_entry2 host[] = {
        {.function = 0, .eax = 0xd}, {.function = 1}, {.function = 0x80000008, .eax = 40}};
    if (c->nent < 3)
        return -E2BIG;
    c->nent = 3;
    memcpy(c->entries, host, sizeof(host));
    return 0;
}

static inline int fake_ioctl(int fd, unsigned long request, void *arg)
{
    if (request == KVM_RUN)
        return fake_run(fd);
    if (request == KVM_GET_MP_STATE) {
        ((struct kvm_mp_state *)arg)->mp_state = fk.mp_state;
        return 0;
    }
    if (++fk.calls == fk.fail_at) {
        fk.failed = request;
        return fk.fail_with;
    }
    switch (request) {
    case KVM_GET_API_VERSION:
        return KVM_API_VERSION;
    case KVM_CHECK_EXTENSION:
        return 1;
    case KVM_GET_VCPU_MMAP_SIZE:
        return FAKE_RUN_SIZE;
    case KVM_CREATE_VM:
        return memfd_create("vm", MFD_CLOEXEC);
    case KVM_CREATE_VCPU:
        return fake_vcpu();
    case KVM_SET_USER_MEMORY_REGION:
        if (fk.n_slots < FAKE_SLOTS)
            fk.slot[fk.n_slots++] = *(struct kvm_userspace_memory_region *)arg;
        return 0;
    case KVM_IOEVENTFD:
        fk.ioeventfds++;
        return 0;
    case KVM_IRQFD:
        fk.irqfds++;
        return 0;
    case KVM_GET_SUPPORTED_CPUID:
        return fake_cpuid(arg);
    case KVM_SET_MSRS:
        return (int)((struct kvm_msrs *)arg)->nmsrs;
    case KVM_GET_SREGS:
        memset(arg, 0, sizeof(struct kvm_sregs));
        return 0;
    case KVM_SET_REGS:
        fk.regs = *(struct kvm_regs *)arg;
        return 0;
    default:
        return 0;
    }
}

static inline void fake_kvm_begin(fake_script script)
{
    memset(&fk, 0, sizeof(fk));
    fk.script = script;
    kvm_ioctl_replace(fake_ioctl);
}

static inline void fake_kvm_end(void)
{
    for (unsigned i = 0; i < fk.n_cpus; i++)
        (void)munmap(fk.run[i], FAKE_RUN_SIZE);
    kvm_ioctl_replace(NULL);
}
