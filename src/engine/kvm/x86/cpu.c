/* Virtual CPUs and the interrupt controller; ports; the probe's program. */
#include "engine/kvm/arch.h"
#include "engine/kvm/sys.h"
#include "engine/kvm/x86/x86.h"
#include "util/cleanup.h"

#include <errno.h>
#include <string.h>

/* Pages near the top of 4 GiB that old Intel CPUs need for real mode; not guest memory. */
#define IDENTITY_MAP 0xfffbc000ULL
#define TSS_PAGES 0xfffbd000ULL

/* --- virtual machine ------------------------------------------------------------------------ */

int arch_vm_check(struct vm *vm, uint64_t bytes, struct err *e)
{
    static struct x86_cpuid c; /* too large for the stack; start-up has one thread */
    c.nent = X86_CPUID_MAX;
    int r = kvm_ioctl(vm->kvm_fd, KVM_GET_SUPPORTED_CPUID, &c);
    if (r < 0)
        return err_sys(e, -r, "KVM does not report the CPU's features");
    uint64_t end = bytes > X86_LOW_END ? bytes - X86_LOW_END + X86_HIGH_START : 0;
    unsigned bits = x86_address_bits(&c);
    if (bits < 64 && end > 1ULL << bits)
        return err_set(e, ENOMEM,
                       "this CPU has %u bits of physical addresses, too few for %llu MiB of memory",
                       bits, (unsigned long long)bytes >> 20);
    return 0;
}

/* Optional features of the host; the machine works without them. */
static void enable_extras(struct vm *vm)
{
    /* No performance counters, for cheaper switches. CPUID hides them anyway. */
    struct kvm_enable_cap pmu = {.cap = KVM_CAP_PMU_CAPABILITY, .args = {KVM_PMU_CAP_DISABLE}};
    if (vm_cap(vm, KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE)
        (void)kvm_ioctl(vm->fd, KVM_ENABLE_CAP, &pmu);
    /* A guest that keeps a CPU from taking interrupts is made to exit. */
    struct kvm_enable_cap notify = {.cap = KVM_CAP_X86_NOTIFY_VMEXIT,
                                    .args = {KVM_X86_NOTIFY_VMEXIT_ENABLED}};
    if (vm_cap(vm, KVM_CAP_X86_NOTIFY_VMEXIT) & KVM_X86_NOTIFY_VMEXIT_ENABLED)
        (void)kvm_ioctl(vm->fd, KVM_ENABLE_CAP, &notify);
}

int arch_vm_init(struct vm *vm, struct err *e)
{
    uint64_t identity = IDENTITY_MAP;
    int r = kvm_ioctl(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity);
    if (r == 0)
        r = kvm_ioctl_n(vm->fd, KVM_SET_TSS_ADDR, TSS_PAGES);
    if (r < 0)
        return err_sys(e, -r, "KVM cannot place its own pages");
    enable_extras(vm);
    r = kvm_ioctl_n(vm->fd, KVM_CREATE_IRQCHIP, 0);
    return r < 0 ? err_sys(e, -r, "KVM cannot create an interrupt controller") : 0;
}

/* --- virtual CPUs --------------------------------------------------------------------------- */

static int set_cpuid(struct vm *vm, int fd, unsigned id, unsigned n)
{
    static struct x86_cpuid c;
    c = (struct x86_cpuid){.nent = X86_CPUID_MAX};
    int r = kvm_ioctl(vm->kvm_fd, KVM_GET_SUPPORTED_CPUID, &c);
    if (r < 0)
        return r;
    x86_cpuid_filter(&c, id, n, vm_cap(vm, KVM_CAP_TSC_DEADLINE_TIMER));
    return kvm_ioctl(fd, KVM_SET_CPUID2, &c);
}

/* Memory is write-back by default, as firmware would set it up; fast string operations are on. */
static int set_msrs(int fd)
{
    struct {
        uint32_t nmsrs, padding; /* struct kvm_msrs */
        struct kvm_msr_entry entry[2];
    } m = {.nmsrs = 2,
           .entry = {{.index = 0x2ff, .data = 1 << 11 | 6}, {.index = 0x1a0, .data = 1}}};
    int r = kvm_ioctl(fd, KVM_SET_MSRS, &m);
    return r < 0 ? r : r == 2 ? 0 : -ENXIO;
}

static struct kvm_segment segment(uint8_t type, bool system)
{
    return (struct kvm_segment){.limit = UINT32_MAX,
                                .selector = system     ? 0x18
                                            : type & 8 ? 0x08
                                                       : 0x10,
                                .type = type,
                                .present = 1,
                                .s = !system,
                                .db = !system,
                                .g = !system};
}

/* The first CPU, as PVH requires: 32-bit protected mode, flat segments, no paging. */
static int set_boot_state(int fd, uint64_t entry, uint64_t rbx)
{
    struct kvm_sregs s;
    int r = kvm_ioctl(fd, KVM_GET_SREGS, &s);
    if (r < 0)
        return r;
    s.cs = segment(0xb, false);
    s.ds = s.es = s.fs = s.gs = s.ss = segment(0x3, false);
    s.tr = segment(0xb, true);
    s.tr.limit = 0x67;
    s.cr0 = 0x11; /* protected mode; the coprocessor is a 387 */
    s.cr4 = s.efer = 0;
    struct kvm_regs regs = {.rflags = 2, .rip = entry, .rbx = rbx};
    r = kvm_ioctl(fd, KVM_SET_SREGS, &s);
    return r < 0 ? r : kvm_ioctl(fd, KVM_SET_REGS, &regs);
}

int arch_vcpu_init(struct vm *vm, int vcpu_fd, unsigned id, unsigned n_cpus, uint64_t entry,
                   struct err *e)
{
    int r = set_cpuid(vm, vcpu_fd, id, n_cpus);
    if (r < 0)
        return err_sys(e, -r, "KVM does not accept the features of CPU %u", id);
    r = set_msrs(vcpu_fd);
    if (r == 0 && id == 0) /* the others wait to be started by the kernel */
        r = set_boot_state(vcpu_fd, entry, X86_START_INFO);
    return r < 0 ? err_sys(e, -r, "KVM does not accept the registers of CPU %u", id) : 0;
}

/* Halted with interrupts off, or never started: a kernel that has stopped. */
bool arch_halted_for_good(int vcpu_fd, const struct kvm_run *run)
{
    struct kvm_mp_state mp;
    if (kvm_ioctl(vcpu_fd, KVM_GET_MP_STATE, &mp) < 0)
        return false;
    return mp.mp_state == KVM_MP_STATE_UNINITIALIZED ||
           (mp.mp_state == KVM_MP_STATE_HALTED && !run->if_flag);
}

/* --- ports ---------------------------------------------------------------------------------- */

/* A serial port that is always ready to send, which is all that an early console needs. */
enum {
    UART = 0x3f8,
    UART_DATA = UART,
    UART_IER = UART + 1,
    UART_LSR = UART + 5,
    UART_LSR_EMPTY = 0x60,
};

static uint8_t read_port(uint16_t port, bool *known)
{
    *known = port == UART_IER || port == UART_LSR;
    return port == UART_LSR ? UART_LSR_EMPTY : port == UART_IER ? 0 : 0xff;
}

bool arch_port_access(struct kvm_run *run, char *console, size_t *n)
{
    size_t room = *n;
    *n = 0;
    if (run->exit_reason != KVM_EXIT_IO)
        return false;
    uint16_t port = run->io.port;
    uint8_t *data = (uint8_t *)run + run->io.data_offset;
    size_t bytes = (size_t)run->io.size * run->io.count;
    if (run->io.direction == KVM_EXIT_IO_IN) {
        bool known = false;
        memset(data, 0xff, bytes);
        if (run->io.size == 1)
            memset(data, read_port(port, &known), bytes);
        return known;
    }
    if (port == UART_DATA && run->io.size == 1) {
        *n = MIN(bytes, room);
        memcpy(console, data, *n);
    }
    return port == UART_DATA || port == UART_IER;
}

/* --- probe ---------------------------------------------------------------------------------- */

enum { PROBE_PORT = 0xf4 };

/* Without an interrupt controller, the host would patch its KVM code for that case, and later back
 * again, which disturbs all running machines. */
int arch_probe_vm(int vm_fd)
{
    return kvm_ioctl_n(vm_fd, KVM_CREATE_IRQCHIP, 0);
}

int arch_probe_load(void *page, int vcpu_fd)
{
    /* mov $ARCH_PROBE_INSNS/4, %ecx; 1: add %ecx, %eax; mov %eax, (0x1800); dec %ecx; jnz 1b;
     * out %al, $PROBE_PORT; hlt */
    static const uint8_t code[] = {0xb9, 0x90, 0xd0, 0x03, 0x00, 0x01, 0xc8, 0xa3,       0x00,
                                   0x18, 0x00, 0x00, 0x49, 0x75, 0xf6, 0xe6, PROBE_PORT, 0xf4};
    _Static_assert(ARCH_PROBE_INSNS / 4 == 0x3d090, "the number in the code");
    memcpy(page, code, sizeof(code));
    return set_boot_state(vcpu_fd, ARCH_PROBE_GPA, 0);
}

bool arch_probe_done(const struct kvm_run *run)
{
    return run->exit_reason == KVM_EXIT_IO && run->io.port == PROBE_PORT;
}
