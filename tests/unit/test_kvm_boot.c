/* What a kernel finds when it starts: itself, the memory map, the table of CPUs, and a CPU with the
 * right CPUID. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kvm/arch.h"
#include "engine/kvm/elf.h"
#include "engine/kvm/kvm.h"
#include "engine/kvm/x86/x86.h"
#include "fake_kernel.h"
#include "unit.h"
#include "util/cleanup.h"
#include "virtio/mmio.h"

enum { RAM = 64 * 1024, LOWEST = 0x100000 };

/* --- the loader ------------------------------------------------------------------------------ */

struct memory {
    struct guest_mem mem;
    uint8_t *at; /* heap: a sanitizer sees both ends */
};

static void memory_make(struct memory *m)
{
    *m = (struct memory){.at = calloc(1, RAM)};
    assert_non_null(m->at);
    assert_int_equal(guest_mem_add(&m->mem, FAKE_KERNEL_AT, RAM, m->at), 0);
}

static int load_bytes(const void *p, size_t n, uint64_t *entry, struct err *e)
{
    struct memory m;
    memory_make(&m);
    AUTO_CLOSE int fd = fake_file(p, n);
    int r = elf_load_kernel(fd, ELF_COPY, EM_X86_64, &m.mem, LOWEST, entry, e);
    free(m.at);
    return r;
}

static int load(const struct fake_kernel *k)
{
    uint64_t entry = 0;
    struct err e = {0};
    int r = load_bytes(k, sizeof(*k), &entry, &e);
    assert_true(r == 0 || (e.msg[0] && entry == 0));
    return r;
}

static void test_kernel_is_loaded(void **state)
{
    struct memory m;
    memory_make(&m);
    struct fake_kernel k = fake_kernel();
    AUTO_CLOSE int fd = fake_file(&k, sizeof(k));
    uint64_t entry = 0;
    struct err e = {0};
    assert_int_equal(elf_load_kernel(fd, ELF_COPY, EM_X86_64, &m.mem, LOWEST, &entry, &e), 0);
    assert_true(entry == FAKE_KERNEL_AT + 16);
    assert_memory_equal(m.at, k.code, sizeof(k.code));
    assert_int_equal(m.at[sizeof(k.code)], 0);
    free(m.at);
}

/* Mapped or read, the guest sees the same; what it writes is its own. */
static void test_kernel_is_mapped(void **state)
{
    enum { FILE_SIZE = 4 * 4096 + 100 };
    struct fake_kernel k = fake_kernel();
    uint8_t *bytes = malloc(FILE_SIZE), *ram;
    struct guest_mem mem = {0};
    uint64_t entry;
    struct err e = {0};
    for (unsigned i = 0; i < FILE_SIZE; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 4096);
    k.load.p_offset = 4096;
    k.load.p_filesz = FILE_SIZE - 4096; /* three pages and a bit */
    k.load.p_memsz = 6 * 4096;
    memcpy(bytes, &k, sizeof(k));
    AUTO_CLOSE int fd = fake_file(bytes, FILE_SIZE);
    ram = mmap(NULL, RAM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(guest_mem_add(&mem, FAKE_KERNEL_AT, RAM, ram), 0);
    assert_int_equal(elf_load_kernel(fd, ELF_MAP, EM_X86_64, &mem, LOWEST, &entry, &e), 0);
    assert_memory_equal(ram, bytes + 4096, FILE_SIZE - 4096);
    for (unsigned i = FILE_SIZE - 4096; i < 6 * 4096; i++)
        assert_int_equal(ram[i], 0);
    memset(ram, 0x11, RAM);
    assert_int_equal(pread(fd, ram, FILE_SIZE, 0), FILE_SIZE);
    assert_memory_equal(ram, bytes, FILE_SIZE);
    (void)munmap(ram, RAM);
    free(bytes);
}

static void test_wrong_files(void **state)
{
    struct fake_kernel k = fake_kernel();
    assert_int_equal(load(&k), 0);
    k.eh.e_machine = EM_AARCH64;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.eh.e_ident[EI_CLASS] = ELFCLASS32;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.eh.e_phentsize = 55;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.eh.e_phnum = 0;
    assert_int_equal(load(&k), -ENOEXEC);
    k.eh.e_phnum = 33;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.eh.e_phoff = UINT64_MAX - 10;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.load.p_offset = INT64_MAX;
    assert_int_equal(load(&k), -ENOEXEC);
    uint64_t entry = 0;
    struct err e = {0};
    k = fake_kernel();
    for (size_t n = 0; n < offsetof(struct fake_kernel, code) + sizeof(k.code); n++) /* cut off */
        assert_int_equal(load_bytes(&k, n, &entry, &e), -ENOEXEC);
}

static void test_segments_stay_inside(void **state)
{
    struct fake_kernel k = fake_kernel();
    k.load.p_memsz = RAM;
    assert_int_equal(load(&k), 0);
    k.load.p_memsz = RAM + 1;
    assert_int_equal(load(&k), -EFBIG);
    k.load.p_memsz = UINT64_MAX;
    assert_int_equal(load(&k), -EFBIG);
    k = fake_kernel();
    k.load.p_paddr = UINT64_MAX - 4095;
    assert_int_equal(load(&k), -EFBIG);
    k.load.p_paddr = LOWEST - 1; /* where the tables are */
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.load.p_filesz = k.load.p_memsz + 1;
    assert_int_equal(load(&k), -ENOEXEC);
}

static void test_notes(void **state)
{
    struct fake_kernel k = fake_kernel();
    k.nh.n_type = 17;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.name[0] = 'Y';
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.nh.n_namesz = UINT32_MAX;
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.nh.n_descsz = 8; /* longer than the segment */
    assert_int_equal(load(&k), -ENOEXEC);
    k = fake_kernel();
    k.entry = FAKE_KERNEL_AT - 1; /* outside of what was loaded */
    assert_int_equal(load(&k), -ENOEXEC);
    k.entry = FAKE_KERNEL_AT + 8192;
    assert_int_equal(load(&k), -ENOEXEC);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void test_memory_layout(void **state)
{
    static const uint64_t gib = 1ULL << 30;
    struct arch_ram r[ARCH_RAM_MAX];
    assert_int_equal(arch_ram_layout(gib, r), 1);
    assert_true(r[0].gpa == 0 && r[0].size == gib);
    assert_int_equal(arch_ram_layout(3 * gib, r), 1);
    assert_int_equal(arch_ram_layout(3 * gib + 4096, r), 2);
    assert_true(r[0].size == 3 * gib && r[1].gpa == 4 * gib && r[1].size == 4096);
    assert_int_equal(arch_ram_layout(1024 * gib, r), 2);
    assert_true(r[0].size + r[1].size == 1024 * gib);
    /* Nothing overlaps. */
    assert_true(arch_device_gpa(0) >= r[0].size);
    assert_true(arch_device_gpa(ENGINE_DEVICES_MAX) < X86_IOAPIC);
    assert_true(arch_device_irq(ENGINE_DEVICES_MAX - 1) < X86_IRQS);
}

static uint64_t word(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static void test_start_info(void **state)
{
    uint8_t *ram = calloc(1, RAM);
    struct guest_mem mem = {0};
    assert_int_equal(guest_mem_add(&mem, 0, RAM, ram), 0);
    assert_int_equal(x86_start_info(&mem, 5ULL << 30, "quiet init=/init"), 0);
    const uint8_t *si = ram + X86_START_INFO;
    assert_int_equal(word(si, 4), 0x336ec578);
    assert_int_equal(word(si + 4, 4), 1);
    assert_string_equal((const char *)ram + word(si + 24, 8), "quiet init=/init");
    assert_int_equal(word(si + 48, 4), 3);
    const uint8_t *map = ram + word(si + 40, 8);
    uint64_t sum = 0, end = 0;
    for (unsigned i = 0; i < 3; i++, map += 24) {
        assert_true(word(map, 8) >= end);
        end = word(map, 8) + word(map + 8, 8);
        sum += word(map + 8, 8);
        assert_int_equal(word(map + 16, 4), 1);
    }
    assert_true(sum == (5ULL << 30) - 0x60000); /* all but the ISA hole */
    assert_true(end == 6ULL << 30);
    char *longest = calloc(1, X86_CMDLINE_MAX + 1);
    memset(longest, 'x', X86_CMDLINE_MAX);
    assert_int_equal(x86_start_info(&mem, 1ULL << 30, longest), -E2BIG);
    longest[X86_CMDLINE_MAX - 1] = '\0';
    assert_int_equal(x86_start_info(&mem, 1ULL << 30, longest), 0);
    assert_int_equal(word(si + 48, 4), 2);
    free(longest);
    free(ram);
}

static uint8_t sum_of(const uint8_t *p, size_t n)
{
    uint8_t sum = 0;
    while (n-- > 0)
        sum = (uint8_t)(sum + *p++);
    return sum;
}

static void test_mptable(void **state)
{
    static const uint8_t sizes[] = {20, 8, 8, 8, 8};
    for (unsigned n = 1; n <= ARCH_CPUS_MAX; n++) {
        uint8_t t[1024];
        size_t len = x86_mptable(t, sizeof(t), 0x9fc00, n);
        assert_true(len > 0 && len <= sizeof(t));
        assert_memory_equal(t, "_MP_", 4);
        assert_int_equal(word(t + 4, 4), 0x9fc10);
        assert_int_equal(sum_of(t, 16), 0);
        const uint8_t *c = t + 16;
        assert_memory_equal(c, "PCMP", 4);
        assert_int_equal(word(c + 4, 2), len - 16);
        assert_int_equal(sum_of(c, len - 16), 0);
        unsigned seen[5] = {0}, entries = 0, boots = 0;
        for (size_t at = 44; at < len - 16; at += sizes[c[at]], entries++) {
            assert_true(c[at] < 5);
            if (c[at] == 0) {
                assert_int_equal(c[at + 1], seen[0]); /* its APIC */
                assert_true(c[at + 3] & 1);
                boots += c[at + 3] >> 1 & 1;
            }
            seen[c[at]]++;
        }
        assert_int_equal(entries, word(c + 34, 2));
        assert_int_equal(seen[0], n);
        assert_int_equal(boots, 1);
        assert_int_equal(seen[1], 1);
        assert_int_equal(seen[2], 1);
        assert_int_equal(seen[3], X86_IRQS);
    }
    uint8_t small[100];
    assert_int_equal(x86_mptable(small, sizeof(small), 0, 1), 0);
}

/* --- CPUID ----------------------------------------------------------------------------------- */

static struct x86_cpuid *cpuid_with(const struct kvm_cpuid_entry2 *e, unsigned n)
{
    struct x86_cpuid *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    memcpy(c->entry, e, n * sizeof(*e));
    c->nent = n;
    return c;
}

static const struct kvm_cpuid_entry2 *leaf(const struct x86_cpuid *c, uint32_t fn, uint32_t index)
{
    for (uint32_t i = 0; i < c->nent; i++)
        if (c->entry[i].function == fn && c->entry[i].index == index)
            return &c->entry[i];
    static const struct kvm_cpuid_entry2 none = {.function = 0xdeadbeef};
    return &none;
}

static void test_cpuid(void **state)
{
    enum { ALL = -1 };
    const struct kvm_cpuid_entry2 host[] = {
        {.function = 0, .eax = 0x1f},
        {.function = 1, .ebx = 0x3f400801, .ecx = (uint32_t)ALL, .edx = (uint32_t)ALL},
        {.function = 4, .index = 0, .eax = 0x21 | 0xfffc000},
        {.function = 4, .index = 3, .eax = 0x63 | 0xfffc000},
        {.function = 6, .eax = (uint32_t)ALL, .ecx = (uint32_t)ALL},
        {.function = 7, .ebx = (uint32_t)ALL},
        {.function = 0xa, .eax = (uint32_t)ALL, .ebx = (uint32_t)ALL},
        {.function = 0xb, .index = 0, .edx = 77},
        {.function = 0x14, .eax = (uint32_t)ALL},
        {.function = 0x1f, .index = 0, .edx = 77},
        {.function = 0x40000001, .eax = 0x01007efb},
        {.function = 0x80000001, .ecx = (uint32_t)ALL},
        {.function = 0x80000008, .eax = 0x3028, .ecx = 0x603f},
        {.function = 0x8000000a, .eax = 1, .edx = (uint32_t)ALL},
        {.function = 0x8000001e, .eax = 77, .ebx = 0x1ff, .ecx = 0x700},
    };
    struct x86_cpuid *c = cpuid_with(host, ARRAY_LEN(host));
    x86_cpuid_filter(c, 5, 6, 1);
    const struct kvm_cpuid_entry2 *l = leaf(c, 1, 0);
    assert_int_equal(l->ebx, 5U << 24 | 6 << 16 | 0x801);
    assert_true(l->ecx >> 31 & 1 && l->ecx >> 24 & 1 && l->ecx >> 21 & 1 && l->edx >> 28 & 1);
    assert_int_equal(l->ecx >> 5 & 1, 0); /* no VMX */
    assert_int_equal(leaf(c, 4, 0)->eax >> 14 & 0xfff, 0);
    assert_int_equal(leaf(c, 4, 3)->eax >> 14 & 0xfff, 5);
    assert_int_equal(leaf(c, 4, 3)->eax >> 26, 5);
    assert_int_equal(leaf(c, 6, 0)->eax, 4); /* the APIC timer never stops, so no other is needed */
    assert_int_equal(leaf(c, 7, 0)->ebx & (1 << 2 | 1 << 25), 0);
    assert_int_equal(leaf(c, 0xa, 0)->eax | leaf(c, 0x14, 0)->eax, 0);
    assert_int_equal(leaf(c, 0x1f, 0)->function,
                     0xdeadbeef); /* of two equivalent leaves, one is enough */
    for (unsigned level = 0; level < 3; level++) {
        assert_int_equal(leaf(c, 0xb, level)->edx, 5);
        assert_true(leaf(c, 0xb, level)->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX);
    }
    assert_int_equal(leaf(c, 0xb, 0)->ebx, 1);
    assert_int_equal(leaf(c, 0xb, 1)->ebx, 6);
    assert_int_equal(leaf(c, 0xb, 1)->eax, 3); /* bits for 6 */
    assert_int_equal(leaf(c, 0x40000001, 0)->eax, 0x01007efb);
    assert_int_equal(leaf(c, 0x80000001, 0)->ecx >> 2 & 1, 0); /* no SVM */
    assert_int_equal(leaf(c, 0x80000008, 0)->ecx, 3 << 12 | 5);
    assert_int_equal(leaf(c, 0x8000000a, 0)->edx, 0);
    assert_int_equal(leaf(c, 0x8000001e, 0)->eax, 5);
    assert_int_equal(x86_address_bits(c), 0x28);
    free(c);
    c = cpuid_with(host, 2);
    x86_cpuid_filter(c, 0, 1, 0);
    assert_int_equal(leaf(c, 1, 0)->ecx >> 24 & 1, 0); /* no deadline timer if the host has none */
    assert_int_equal(leaf(c, 1, 0)->edx >> 28 & 1, 0);
    assert_int_equal(x86_address_bits(c), 36);
    free(c);
}

static void test_cpuid_is_full(void **state)
{
    struct x86_cpuid *c = calloc(1, sizeof(*c));
    c->nent = UINT32_MAX;
    for (unsigned i = 0; i < X86_CPUID_MAX; i++)
        c->entry[i].function = 0x1000 + i;
    x86_cpuid_filter(c, 0, 1, 0);
    assert_int_equal(c->nent, X86_CPUID_MAX);
    free(c);
}

/* --- command line ---------------------------------------------------------------------------- */

static void test_cmdline(void **state)
{
    struct engine_params p = {.init = "/init", .n_devices = 2};
    char line[KVM_CMDLINE_MAX];
    assert_int_equal(kvm_cmdline(line, sizeof(line), &p), 0);
    assert_non_null(strstr(line, "loglevel=3 "));
    assert_non_null(strstr(line, " init=/init "));
    assert_non_null(strstr(line, " virtio_mmio.device=4K@0xd0000000:5 "));
    assert_non_null(strstr(line, " virtio_mmio.device=4K@0xd0001000:6"));
    assert_non_null(strstr(line, " zram.num_devices=0 "));
    assert_null(strstr(line, "hash_entries"));
    p.memory_bytes = 4ULL << 30;
    p.verbose = true;
    p.n_devices = ENGINE_DEVICES_MAX;
    assert_int_equal(kvm_cmdline(line, sizeof(line), &p), 0);
    assert_non_null(strstr(line, "loglevel=7 "));
    assert_non_null(strstr(line, " dhash_entries=262144 "));
    char small[32];
    assert_int_equal(kvm_cmdline(small, sizeof(small), &p), -E2BIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_is_loaded),
        cmocka_unit_test(test_kernel_is_mapped),
        cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_segments_stay_inside),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_memory_layout),
        cmocka_unit_test(test_start_info),
        cmocka_unit_test(test_mptable),
        cmocka_unit_test(test_cpuid),
        cmocka_unit_test(test_cpuid_is_full),
        cmocka_unit_test(test_cmdline),
    };
    return cmocka_run_group_tests_name("kvm-boot", tests, NULL, NULL);
}
