/* A kernel of a few bytes in a file: an ELF header, one segment, and the note that says where a
 * CPU without paging starts. */
#pragma once

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAKE_KERNEL_AT 0x1000000ULL

struct fake_kernel {
    Elf64_Ehdr eh;
    Elf64_Phdr load, note;
    Elf64_Nhdr nh;
    char name[4];
    uint32_t entry;
    uint8_t code[64];
};

static inline struct fake_kernel fake_kernel(void)
{
    struct fake_kernel k = {
        .eh = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
               .e_type = ET_EXEC,
               .e_machine = EM_X86_64,
               .e_phoff = offsetof(struct fake_kernel, load),
               .e_phentsize = sizeof(Elf64_Phdr),
               .e_phnum = 2},
        .load = {.p_type = PT_LOAD,
                 .p_offset = offsetof(struct fake_kernel, code),
                 .p_paddr = FAKE_KERNEL_AT,
                 .p_filesz = sizeof(((struct fake_kernel *)0)->code),
                 .p_memsz = 8192},
        .note = {.p_type = PT_NOTE,
                 .p_offset = offsetof(struct fake_kernel, nh),
                 .p_filesz = sizeof(Elf64_Nhdr) + 8},
        .nh = {.n_namesz = 4, .n_descsz = 4, .n_type = 18},
        .name = "Xen",
        .entry = FAKE_KERNEL_AT + 16,
    };
    memset(k.code, 0xf4, sizeof(k.code));
    return k;
}

/* A descriptor of a file with these bytes. */
static inline int fake_file(const void *p, size_t n)
{
    int fd = memfd_create("kernel", MFD_CLOEXEC);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n)
        abort();
    return fd;
}
