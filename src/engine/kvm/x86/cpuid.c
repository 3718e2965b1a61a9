/* CPUID of a virtual CPU.
 *
 * The host's KVM lists what it supports; apart from the topology, we only remove features: nested
 * virtualization, performance counters, SGX and processor trace (attack surface that a sandbox does
 * not need), and anything that differs between the host's CPUs. */
#include "engine/kvm/x86/x86.h"

#include <stdbool.h>

enum { CPUID_SMT = 1, CPUID_CORE = 2, TOPOLOGY = 0xb, TOPOLOGY_2 = 0x1f };

#define BIT(n) (1U << (n))

static unsigned bits_for(unsigned n)
{
    unsigned bits = 0;
    while ((1U << bits) < n)
        bits++;
    return bits;
}

static void features(struct kvm_cpuid_entry2 *c, unsigned id, unsigned n, int deadline)
{
    c->ebx = (c->ebx & 0xffff) | id << 24 | n << 16;
    c->ecx &= ~(BIT(5) | BIT(2) | BIT(3)); /* VMX, DTES64, MONITOR */
    c->ecx |= BIT(31) | BIT(21);           /* a hypervisor; x2APIC */
    c->ecx = deadline ? c->ecx | BIT(24) : c->ecx & ~BIT(24);
    c->edx = n > 1 ? c->edx | BIT(28) : c->edx & ~BIT(28);
}

/* Cache leaves of both vendors: the last-level cache is shared by all cores, the others are
 * private. */
static void cache(struct kvm_cpuid_entry2 *c, unsigned n, bool intel)
{
    unsigned type = c->eax & 0x1f, level = c->eax >> 5 & 7;
    if (type == 0)
        return;
    c->eax &= ~0x03ffc000U;
    c->eax |= (level >= 3 ? n - 1 : 0) << 14;
    if (intel)
        c->eax = (c->eax & 0x03ffffff) | (n - 1) << 26;
}

static void topology(struct kvm_cpuid_entry2 *c, unsigned id, unsigned n)
{
    unsigned level = c->index;
    c->flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
    c->eax = level == 1 ? bits_for(n) : 0;
    c->ebx = level == 0 ? 1 : level == 1 ? n : 0;
    c->ecx = level | (level == 0 ? CPUID_SMT : level == 1 ? CPUID_CORE : 0) << 8;
    c->edx = id;
}

/* KVM lists the leaf with one empty level out of three: replace it by all three. */
static void add_topology(struct x86_cpuid *c, unsigned id, unsigned n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->nent; i++)
        if (c->entry[i].function != TOPOLOGY && c->entry[i].function != TOPOLOGY_2)
            c->entry[kept++] = c->entry[i];
    for (unsigned level = 0; level < 3 && kept < X86_CPUID_MAX; level++) {
        c->entry[kept] = (struct kvm_cpuid_entry2){.function = TOPOLOGY, .index = level};
        topology(&c->entry[kept++], id, n);
    }
    c->nent = kept;
}

static void clear(struct kvm_cpuid_entry2 *c)
{
    c->eax = c->ebx = c->ecx = c->edx = 0;
}

static void filter_extended(struct kvm_cpuid_entry2 *c, unsigned id, unsigned n)
{
    switch (c->function) {
    case 0x80000001:
        c->ecx &=
            ~(BIT(2) | BIT(10) | BIT(12) | BIT(23) | BIT(24)); /* SVM, IBS, SKINIT, counters */
        if (n == 1)
            c->ecx &= ~BIT(1); /* CmpLegacy (AMD): several cores */
        break;
    case 0x80000008:
        c->ecx = bits_for(n) << 12 | (n - 1);
        break;
    case 0x8000000a: /* SVM */
    case 0x8000001b: /* IBS */
    case 0x8000001f: /* memory encryption */
    case 0x80000022: /* counters */
    case 0x80000026: /* topology of the host */
        clear(c);
        break;
    case 0x8000001d:
        cache(c, n, false);
        break;
    case 0x8000001e:
        c->eax = id;
        c->ebx = id; /* one thread per core */
        c->ecx = 0;  /* one node */
        c->edx = 0;
        break;
    default:
        break;
    }
}

static void filter(struct kvm_cpuid_entry2 *c, unsigned id, unsigned n, int deadline)
{
    switch (c->function) {
    case 1:
        features(c, id, n, deadline);
        break;
    case 4:
        cache(c, n, true);
        break;
    case 6: /* power management: only that the APIC timer never stops */
        clear(c);
        c->eax = BIT(2);
        break;
    case 7:
        if (c->index == 0)
            c->ebx &= ~(BIT(2) | BIT(25)); /* SGX, processor trace */
        break;
    case 0xa:  /* counters */
    case 0x12: /* SGX */
    case 0x14: /* processor trace */
        clear(c);
        break;
    default:
        filter_extended(c, id, n);
        break;
    }
}

void x86_cpuid_filter(struct x86_cpuid *c, unsigned id, unsigned n_cpus, int deadline)
{
    if (c->nent > X86_CPUID_MAX)
        c->nent = X86_CPUID_MAX;
    for (uint32_t i = 0; i < c->nent; i++)
        filter(&c->entry[i], id, n_cpus, deadline);
    add_topology(c, id, n_cpus);
}

unsigned x86_address_bits(const struct x86_cpuid *c)
{
    for (uint32_t i = 0; i < c->nent && i < X86_CPUID_MAX; i++)
        if (c->entry[i].function == 0x80000008)
            return c->entry[i].eax & 0xff;
    return 36;
}
