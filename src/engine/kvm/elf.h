/* Loads a Linux kernel (vmlinux, ELF) into guest memory, as its PVH note specifies.
 *
 * The file is one of ours, but nothing here relies on that: every offset, size and address in it is
 * checked, so a damaged or hostile file is an error and never a stray write.
 */
#pragma once

#include "util/err.h"
#include "virtio/guest_mem.h"

#include <stdint.h>

enum elf_way {
    ELF_COPY, /* the file is read into guest memory */
    /* Whole pages of the file are mapped over guest memory, privately: nothing is copied, and
     * guests share the pages that they do not write to. Guest memory must be mmap()ed, and the file
     * must be replaced, never overwritten. */
    ELF_MAP,
};

/* `machine` is the expected EM_*. Nothing is loaded below `lowest`. *entry becomes the physical
 * address where a CPU in 32-bit mode starts. Guest memory must be all zeros. */
int elf_load_kernel(int fd, enum elf_way way, unsigned machine, const struct guest_mem *mem,
                    uint64_t lowest, uint64_t *entry, struct err *e);
