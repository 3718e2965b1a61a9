#include "engine/kvm/vm.h"

#include "engine/kvm/arch.h"
#include "engine/kvm/sys.h"
#include "util/cleanup.h"
#include "virtio/mmio.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICE_SLOT = ARCH_RAM_MAX, RUN_SIZE_MAX = 64 * 1024 };

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

int vm_cap(const struct vm *vm, unsigned cap)
{
    int r = kvm_ioctl_n(vm->kvm_fd, KVM_CHECK_EXTENSION, cap);
    return MAX(r, 0);
}

/* Capabilities that the engine needs; all of them are more than ten years old. */
static int check_host(struct vm *vm, struct err *e)
{
    static const struct {
        unsigned cap;
        const char *name;
    } need[] = {
        {KVM_CAP_USER_MEMORY, "memory slots"},
        {KVM_CAP_IRQCHIP, "an interrupt controller"},
        {KVM_CAP_IRQFD, "irqfd"},
        {KVM_CAP_IOEVENTFD, "ioeventfd"},
        {KVM_CAP_IMMEDIATE_EXIT, "immediate exit"},
        {KVM_CAP_MP_STATE, "CPU states"},
    };
    int r = kvm_ioctl_n(vm->kvm_fd, KVM_GET_API_VERSION, 0);
    if (r < 0)
        return err_sys(e, -r, "cannot query /dev/kvm");
    if (r != KVM_API_VERSION)
        return err_set(e, ENOTSUP, "/dev/kvm has API version %d, not %d", r, KVM_API_VERSION);
    for (size_t i = 0; i < ARRAY_LEN(need); i++)
        if (vm_cap(vm, need[i].cap) == 0)
            return err_set(e, ENOTSUP, "this host's /dev/kvm lacks %s", need[i].name);
    r = kvm_ioctl_n(vm->kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (r < (int)sizeof(struct kvm_run) || r > RUN_SIZE_MAX)
        return err_set(e, r < 0 ? -r : EPROTO,
                       "/dev/kvm: unexpected size of a CPU's shared area (%d)", r);
    vm->run_size = (size_t)r;
    return 0;
}

/* Shared, so that it does not count as our data and can be returned piece by piece; not reserved,
 * so that only touched pages take memory. */
static int map_memory(uint8_t **ret, size_t size, int fd)
{
    int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    (void)madvise(p, size, MADV_DONTDUMP);
    (void)madvise(p, size, MADV_NOHUGEPAGE);
    *ret = p;
    return 0;
}

/* The same memory, with a descriptor. Its size is sealed, so that a process that maps it never
 * loses a page. */
static int memory_file(size_t size)
{
    AUTO_CLOSE int fd = memfd_create("guest", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    return steal_fd(&fd);
}

static int set_slot(struct vm *vm, uint32_t slot, uint32_t flags, uint64_t gpa, uint64_t size,
                    void *host)
{
    struct kvm_userspace_memory_region reg = {.slot = slot,
                                              .flags = flags,
                                              .guest_phys_addr = gpa,
                                              .memory_size = size,
                                              .userspace_addr = (uintptr_t)host};
    return kvm_ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &reg);
}

static int add_memory(struct vm *vm, uint64_t bytes, bool shared, struct err *e)
{
    struct arch_ram ram[ARCH_RAM_MAX];
    unsigned n = arch_ram_layout(bytes, ram);
    int r = shared ? memory_file(bytes) : -1;
    if (shared && r < 0)
        return err_sys(e, -r, "cannot create a file for guest memory");
    vm->ram_fd = r;
    r = map_memory(&vm->ram, bytes, vm->ram_fd);
    if (r < 0)
        return err_sys(e, -r, "cannot map %llu MiB of guest memory",
                       (unsigned long long)bytes >> 20);
    vm->ram_size = bytes;
    uint8_t *host = vm->ram;
    for (unsigned i = 0; i < n; i++) {
        r = guest_mem_add(&vm->mem, ram[i].gpa, ram[i].size, host);
        if (r == 0)
            r = set_slot(vm, i, 0, ram[i].gpa, ram[i].size, host);
        if (r < 0)
            return err_sys(e, -r, "cannot add guest memory to the virtual machine");
        host += ram[i].size;
    }
    return 0;
}

static int add_device_pages(struct vm *vm, unsigned n_devices, struct err *e)
{
    if (n_devices == 0)
        return 0;
    size_t size = (size_t)n_devices * MMIO_PAGE;
    int r = map_memory(&vm->pages, size, -1);
    if (r < 0)
        return err_sys(e, -r, "cannot map device registers");
    vm->pages_size = size;
    vm->readable = vm_cap(vm, KVM_CAP_READONLY_MEM) > 0;
    if (vm->readable)
        r = set_slot(vm, DEVICE_SLOT, KVM_MEM_READONLY, arch_device_gpa(0), size, vm->pages);
    return r < 0 ? err_sys(e, -r, "cannot map device registers into the guest") : 0;
}

int vm_create(struct vm *vm, int kvm_fd, const struct vm_params *p, struct err *e)
{
    *vm = (struct vm){.kvm_fd = kvm_fd, .fd = -1, .ram_fd = -1};
    int r = check_host(vm, e);
    if (r == 0)
        r = arch_vm_check(vm, p->memory_bytes, e);
    if (r < 0)
        return r;
    vm->fd = kvm_ioctl_n(kvm_fd, KVM_CREATE_VM, 0);
    if (vm->fd < 0) {
        r = vm->fd;
        vm->fd = -1;
        err_sys(e, -r, "KVM cannot create a virtual machine");
        if (r == -EBUSY)
            err_hint(e, "another hypervisor may own the CPU's virtualization: stop it, or use "
                        "--engine uml");
        return r;
    }
    r = add_memory(vm, p->memory_bytes, p->shared, e);
    if (r == 0)
        r = add_device_pages(vm, p->n_devices, e);
    if (r == 0)
        r = arch_vm_init(vm, e);
    if (r < 0)
        vm_destroy(vm);
    return r;
}

void vm_destroy(struct vm *vm)
{
    close_fd(&vm->fd);
    close_fd(&vm->ram_fd);
    if (vm->ram)
        (void)munmap(vm->ram, vm->ram_size);
    if (vm->pages)
        (void)munmap(vm->pages, vm->pages_size);
    *vm = (struct vm){.kvm_fd = -1, .fd = -1, .ram_fd = -1};
}

int vm_add_ioeventfd(struct vm *vm, uint64_t gpa, uint32_t value, int fd, struct err *e)
{
    struct kvm_ioeventfd io = {.datamatch = value,
                               .addr = gpa,
                               .len = sizeof(value),
                               .fd = fd,
                               .flags = KVM_IOEVENTFD_FLAG_DATAMATCH};
    int r = kvm_ioctl(vm->fd, KVM_IOEVENTFD, &io);
    return r < 0 ? err_sys(e, -r, "KVM cannot watch a queue") : 0;
}

int vm_add_irqfd(struct vm *vm, int fd, unsigned irq, struct err *e)
{
    struct kvm_irqfd io = {.fd = (uint32_t)fd, .gsi = irq};
    int r = kvm_ioctl(vm->fd, KVM_IRQFD, &io);
    return r < 0 ? err_sys(e, -r, "KVM cannot route an interrupt") : 0;
}
