/* Everything that differs between architectures. A port is a directory beside x86/ that implements
 * these functions; nothing else in the engine knows registers, tables or addresses. */
#pragma once

#include "engine/kvm/vm.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARCH_CPUS_MAX = 32, ARCH_RAM_MAX = 2 };

/* Where guest memory is. `bytes` are spread over at most ARCH_RAM_MAX ranges, in order. */
struct arch_ram {
    uint64_t gpa, size;
};
unsigned arch_ram_layout(uint64_t bytes, struct arch_ram out[ARCH_RAM_MAX]);

/* Where the registers of device i are (one page each), and its interrupt. */
uint64_t arch_device_gpa(unsigned i);
unsigned arch_device_irq(unsigned i);

/* Checks that this host can give a guest that much memory. */
int arch_vm_check(struct vm *vm, uint64_t bytes, struct err *e);

/* Creates what must exist before the first virtual CPU: the interrupt controller. */
int arch_vm_init(struct vm *vm, struct err *e);

/* Loads the kernel into guest memory, and the tables from which it learns its memory, CPUs and
 * arguments. *entry becomes the address where the first CPU starts. */
int arch_load(struct vm *vm, int kernel_fd, const char *cmdline, unsigned n_cpus, uint64_t *entry,
              struct err *e);

/* Sets a virtual CPU's registers and features, before its first instruction. */
int arch_vcpu_init(struct vm *vm, int vcpu_fd, unsigned id, unsigned n_cpus, uint64_t entry,
                   struct err *e);

/* Kernel arguments that depend on the architecture: console, reboot. */
const char *arch_cmdline(void);

/* An access outside of memory and devices, such as an I/O port. Reads are answered; what was
 * written to the console goes to `console`, at most `*n` bytes, and *n becomes their number. False
 * when there is nothing at the address. */
bool arch_port_access(struct kvm_run *run, char *console, size_t *n);

/* Whether a virtual CPU that was just interrupted is halted for good: nothing can wake it. */
bool arch_halted_for_good(int vcpu_fd, const struct kvm_run *run);

/* The probe: a program that runs `ARCH_PROBE_INSNS` instructions in kernel mode and then exits to
 * user space. `page` is one page of guest memory at ARCH_PROBE_GPA, `vcpu_fd` a new CPU. */
#define ARCH_PROBE_GPA 0x1000ULL
#define ARCH_PROBE_INSNS 1000000ULL
int arch_probe_vm(int vm_fd); /* before the CPU is made */
int arch_probe_load(void *page, int vcpu_fd);
bool arch_probe_done(const struct kvm_run *run);
