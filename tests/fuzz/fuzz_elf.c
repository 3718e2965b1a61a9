/* The kernel loader: whatever the file says, nothing is written outside guest memory, and an entry
 * point that is accepted is inside what was loaded. */
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/kvm/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LOW = 64 * 1024, HIGH = 4096 };
#define LOW_GPA 0x1000000ULL
#define HIGH_GPA 0x100000000ULL

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct guest_mem mem = {0};
    uint8_t *low = calloc(1, LOW), *high = calloc(1, HIGH); /* heap: a sanitizer sees both ends */
    struct err e = {0};
    uint64_t entry = 1;
    if (fd < 0)
        fd = memfd_create("kernel", MFD_CLOEXEC);
    if (!low || !high || fd < 0 || ftruncate(fd, 0) < 0 ||
        pwrite(fd, data, size, 0) != (ssize_t)size || guest_mem_add(&mem, LOW_GPA, LOW, low) < 0 ||
        guest_mem_add(&mem, HIGH_GPA, HIGH, high) < 0)
        abort();
    int r = elf_load_kernel(fd, ELF_COPY, EM_X86_64, &mem, 0x100000, &entry, &e);
    if (r == 0 ? !guest_mem_ptr(&mem, entry, 1) || entry > UINT32_MAX : entry != 1 || !e.msg[0])
        abort();
    free(low);
    free(high);
    return 0;
}
