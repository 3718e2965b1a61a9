/* Loads a Linux kernel (vmlinux, ELF) into guest memory, as its PVH note says.
 *
 * The file is one of ours, but nothing here relies on that: every offset, size and address of it is
 * checked, so a damaged or hostile file is an error and never a wild write.
 */
#ifndef MSB_ENGINE_KVM_ELF_H
#define MSB_ENGINE_KVM_ELF_H

#include "util/err.h"
#include "virtio/guest_mem.h"

#include <stdint.h>

enum elf_way {
    ELF_COPY, /* the file is read into guest memory */
    /* Whole pages of the file are mapped over guest memory, privately: no copy is made, and all
     * guests share what none of them writes. Guest memory must be made of mappings, and the file is
     * replaced, if ever, by another one, not written over. */
    ELF_MAP,
};

/* `machine` is the EM_* that is wanted. Nothing is loaded below `lowest`. *entry becomes the
 * physical address where a CPU in 32-bit mode starts. Guest memory is fresh, that is all zeros. */
int elf_load_kernel(int fd, enum elf_way way, unsigned machine, const struct guest_mem *mem,
                    uint64_t lowest, uint64_t *entry, struct err *e);

#endif
