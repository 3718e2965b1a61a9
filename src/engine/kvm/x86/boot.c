/* What a kernel finds in memory when it starts: its own image, its command line, the memory map and
 * the table of CPUs. */
#include "engine/kvm/arch.h"
#include "engine/kvm/elf.h"
#include "engine/kvm/x86/x86.h"
#include "util/cleanup.h"
#include "virtio/mmio.h"

#include <elf.h>
#include <errno.h>
#include <string.h>

/* --- where things are ----------------------------------------------------------------------- */

unsigned arch_ram_layout(uint64_t bytes, struct arch_ram out[ARCH_RAM_MAX])
{
    out[0] = (struct arch_ram){.gpa = 0, .size = MIN(bytes, X86_LOW_END)};
    if (bytes <= X86_LOW_END)
        return 1;
    out[1] = (struct arch_ram){.gpa = X86_HIGH_START, .size = bytes - X86_LOW_END};
    return 2;
}

uint64_t arch_device_gpa(unsigned i)
{
    return X86_DEVICES + (uint64_t)i * MMIO_PAGE;
}

unsigned arch_device_irq(unsigned i)
{
    return X86_IRQ_BASE + i;
}

/* The only console is the early one: it takes two exits to set up and two for each character, which
 * a normal boot does not print. It is kept after the boot for the messages of a panic. */
const char *arch_cmdline(void)
{
    return "earlycon=uart8250,io,0x3f8 keep_bootcon 8250.nr_uarts=0 noreplace-smp swiotlb=noforce "
           "tsc=reliable reboot=t";
}

/* --- the MultiProcessor table ---------------------------------------------------------------- */

/* Written field by field, as in the specification, version 1.4. */
struct writer {
    uint8_t *p;
    size_t n, size;
};

static void put(struct writer *w, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, w->n++)
        if (w->n < w->size)
            w->p[w->n] = (uint8_t)(v >> 8 * i);
}

static void put_text(struct writer *w, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(w, *s ? (uint8_t)*s++ : ' ', 1);
}

static void fix_sum(uint8_t *p, size_t n, size_t at)
{
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + p[i]);
    p[at] = (uint8_t)(p[at] - sum);
}

enum {
    MP_PROCESSOR,
    MP_BUS,
    MP_IOAPIC,
    MP_INTERRUPT,
    MP_LOCAL_INTERRUPT,
    FLOATING_LEN = 16,
    HEADER_LEN = 44,
    FLOATING_SUM = 10, /* offsets of the checksums */
    HEADER_SUM = 7,
    LAPIC_VERSION = 0x14,
    IOAPIC_VERSION = 0x11,
    CPU_ENABLED = 1,
    CPU_BOOT = 2,
    INT_VECTORED = 0,
    INT_NMI = 1,
    INT_EXTERNAL = 3,
    ALL_CPUS = 0xff,
};

static unsigned put_entries(struct writer *w, unsigned n_cpus)
{
    unsigned n = 0;
    uint8_t ioapic_id = (uint8_t)n_cpus;
    for (unsigned i = 0; i < n_cpus; i++, n++) {
        put(w, MP_PROCESSOR, 1);
        put(w, i, 1);
        put(w, LAPIC_VERSION, 1);
        put(w, CPU_ENABLED | (i == 0 ? CPU_BOOT : 0), 1);
        put(w, 0x600, 4); /* signature: a family; CPUID says more */
        put(w, 0x201, 4); /* features: FPU, APIC */
        put(w, 0, 8);
    }
    put(w, MP_BUS, 1);
    put(w, 0, 1);
    put_text(w, "ISA", 6);
    put(w, MP_IOAPIC, 1);
    put(w, ioapic_id, 1);
    put(w, IOAPIC_VERSION, 1);
    put(w, 1, 1);
    put(w, X86_IOAPIC, 4);
    n += 2;
    for (unsigned irq = 0; irq < X86_IRQS; irq++, n++) { /* edge-triggered, as on the ISA bus */
        put(w, MP_INTERRUPT, 1);
        put(w, INT_VECTORED, 1);
        put(w, 0, 2);
        put(w, 0, 1);
        put(w, irq, 1);
        put(w, ioapic_id, 1);
        put(w, irq, 1);
    }
    for (unsigned pin = 0; pin < 2; pin++, n++) {
        put(w, MP_LOCAL_INTERRUPT, 1);
        put(w, pin == 0 ? INT_EXTERNAL : INT_NMI, 1);
        put(w, 0, 2);
        put(w, 0, 2);
        put(w, pin == 0 ? 0 : ALL_CPUS, 1);
        put(w, pin, 1);
    }
    return n;
}

size_t x86_mptable(uint8_t *to, size_t size, uint64_t gpa, unsigned n_cpus)
{
    struct writer w = {.p = to, .size = size};
    put_text(&w, "_MP_", 4);
    put(&w, gpa + FLOATING_LEN, 4);
    put(&w, 1, 1); /* length in units of 16 bytes */
    put(&w, 4, 1); /* version 1.4 */
    put(&w, 0, 6);

    put_text(&w, "PCMP", 4);
    put(&w, 0, 2); /* length: below */
    put(&w, 4, 1);
    put(&w, 0, 1);
    put_text(&w, "MSB", 8);
    put_text(&w, "SANDBOX", 12);
    put(&w, 0, 4);
    put(&w, 0, 2);
    put(&w, 0, 2); /* number of entries: below */
    put(&w, X86_LAPIC, 4);
    put(&w, 0, 4);
    unsigned entries = put_entries(&w, n_cpus);
    if (w.n > size)
        return 0;
    size_t len = w.n - FLOATING_LEN;
    uint8_t *table = to + FLOATING_LEN;
    table[4] = (uint8_t)len;
    table[5] = (uint8_t)(len >> 8);
    table[34] = (uint8_t)entries;
    table[35] = (uint8_t)(entries >> 8);
    fix_sum(to, FLOATING_LEN, FLOATING_SUM);
    fix_sum(table, len, HEADER_SUM);
    return w.n;
}

/* --- PVH ------------------------------------------------------------------------------------ */

struct start_info {
    uint32_t magic, version, flags, nr_modules;
    uint64_t modlist, cmdline, rsdp, memmap;
    uint32_t memmap_entries, reserved;
};

struct memmap_entry {
    uint64_t addr, size;
    uint32_t type, reserved;
};

enum { START_MAGIC = 0x336ec578, TYPE_RAM = 1, ISA_START = 0xa0000, ISA_END = 0x100000 };

int x86_start_info(const struct guest_mem *mem, uint64_t memory_bytes, const char *cmdline)
{
    struct memmap_entry map[3] = {
        {.addr = 0, .size = ISA_START, .type = TYPE_RAM},
        {.addr = ISA_END, .size = MIN(memory_bytes, X86_LOW_END) - ISA_END, .type = TYPE_RAM},
        {.addr = X86_HIGH_START, .size = memory_bytes - X86_LOW_END, .type = TYPE_RAM},
    };
    struct start_info si = {.magic = START_MAGIC,
                            .version = 1,
                            .cmdline = X86_CMDLINE,
                            .memmap = X86_MEMMAP,
                            .memmap_entries = memory_bytes > X86_LOW_END ? 3 : 2};
    size_t len = strlen(cmdline) + 1;
    if (len > X86_CMDLINE_MAX)
        return -E2BIG;
    int r = guest_mem_write(mem, X86_START_INFO, &si, sizeof(si));
    if (r == 0)
        r = guest_mem_write(mem, X86_MEMMAP, map, si.memmap_entries * sizeof(map[0]));
    if (r == 0)
        r = guest_mem_write(mem, X86_CMDLINE, cmdline, len);
    return r;
}

int arch_load(struct vm *vm, int kernel_fd, const char *cmdline, unsigned n_cpus, uint64_t *entry,
              struct err *e)
{
    /* Other processes that map this memory would not see what is mapped over it here, but need to,
     * since the kernel hands parts of its image to its allocator. */
    enum elf_way way = vm->ram_fd < 0 ? ELF_MAP : ELF_COPY;
    int r = elf_load_kernel(kernel_fd, way, EM_X86_64, &vm->mem, X86_KERNEL_LOWEST, entry, e);
    if (r < 0)
        return r;
    uint8_t table[1024];
    size_t n = x86_mptable(table, sizeof(table), X86_MPTABLE, n_cpus);
    if (n == 0)
        return err_set(e, EINVAL, "too many CPUs for the guest's MP table (%u)", n_cpus);
    r = guest_mem_write(&vm->mem, X86_MPTABLE, table, n);
    if (r == 0)
        r = x86_start_info(&vm->mem, vm->ram_size, cmdline);
    return r < 0 ? err_sys(e, -r, "cannot write the guest kernel's boot tables") : 0;
}
