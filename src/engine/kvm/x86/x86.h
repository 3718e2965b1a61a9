/* Internals of the x86 port, exposed so that tests can check them one by one. */
#pragma once

#include "virtio/guest_mem.h"

#include <linux/kvm.h>
#include <stddef.h>
#include <stdint.h>

enum {
    X86_IRQ_BASE = 5,   /* of the first device; below are timer, keyboard, cascade, serial ports */
    X86_IRQS = 24,      /* pins of the I/O APIC */
    X86_CPUID_MAX = 256 /* entries */
};

#define X86_LOW_END 0xc0000000ULL /* guest memory below 4 GiB ends here: 3 GiB */
#define X86_HIGH_START 0x100000000ULL
#define X86_DEVICES 0xd0000000ULL
#define X86_IOAPIC 0xfec00000ULL
#define X86_LAPIC 0xfee00000ULL

/* Low memory, which the kernel may reuse once it has read it. */
#define X86_MPTABLE 0x0ULL /* the first place where a kernel looks */
#define X86_START_INFO 0x6000ULL
#define X86_MEMMAP 0x6100ULL
#define X86_CMDLINE 0x7000ULL
#define X86_CMDLINE_MAX 2048 /* the kernel's own limit */
#define X86_KERNEL_LOWEST 0x100000ULL

/* The MultiProcessor table: how a kernel without ACPI finds its CPUs and interrupts. Returns its
 * size, or 0 if it does not fit. */
size_t x86_mptable(uint8_t *to, size_t size, uint64_t gpa, unsigned n_cpus);

/* The PVH start information, memory map and command line. */
int x86_start_info(const struct guest_mem *mem, uint64_t memory_bytes, const char *cmdline);

/* Reduces what the host supports (*c) to what a sandbox needs, with the topology of `n_cpus` cores
 * in one package, for CPU `id`. deadline: the host has the TSC-deadline timer. */
struct x86_cpuid {
    uint32_t nent, padding; /* struct kvm_cpuid2 */
    struct kvm_cpuid_entry2 entry[X86_CPUID_MAX];
};
void x86_cpuid_filter(struct x86_cpuid *c, unsigned id, unsigned n_cpus, int deadline);

/* Physical address bits; 36 if they are not listed. */
unsigned x86_address_bits(const struct x86_cpuid *c);
