#include "engine/kvm/elf.h"

#include "util/cleanup.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SEGMENTS_MAX = 32,
    PAGE = 4096,
    NOTES_MAX = 64 * 1024,
    NOTE_PHYS32_ENTRY = 18, /* of the name "Xen": the entry for a CPU without paging */
};

static int read_at(int fd, void *to, size_t n, uint64_t off)
{
    uint8_t *p = to;
    if (off > INT64_MAX - n)
        return -ENOEXEC;
    while (n > 0) {
        ssize_t k = pread(fd, p, n, (off_t)off);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -ENOEXEC; /* truncated */
        p += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

static uint64_t padded(uint64_t n)
{
    return (n + 3) & ~3ULL;
}

/* Finds the entry point, if these notes have it. */
static bool find_entry(const uint8_t *p, size_t n, uint64_t *entry)
{
    while (n >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr h;
        memcpy(&h, p, sizeof(h));
        p += sizeof(h);
        n -= sizeof(h);
        uint64_t name = padded(h.n_namesz), desc = padded(h.n_descsz);
        if (name > n || desc > n - name)
            return false;
        if (h.n_type == NOTE_PHYS32_ENTRY && h.n_namesz == 4 && memcmp(p, "Xen", 4) == 0 &&
            (h.n_descsz == 4 || h.n_descsz == 8)) {
            *entry = 0;
            memcpy(entry, p + name, h.n_descsz);
            return true;
        }
        p += name + desc;
        n -= name + desc;
    }
    return false;
}

static int read_notes(int fd, const Elf64_Phdr *ph, uint64_t *entry, bool *found)
{
    if (ph->p_filesz == 0 || ph->p_filesz > NOTES_MAX)
        return 0; /* not the notes that we look for */
    AUTO_FREE uint8_t *notes = malloc(ph->p_filesz);
    if (!notes)
        return -ENOMEM;
    int r = read_at(fd, notes, ph->p_filesz, ph->p_offset);
    if (r == 0 && find_entry(notes, ph->p_filesz, entry))
        *found = true;
    return r;
}

/* Maps what it can instead of reading it, and returns how many bytes that is. Never beyond the end
 * of a truncated file, where a mapping would fault only later; and first at another address, so
 * that a failure does not unmap guest memory. */
static size_t map_pages(int fd, const Elf64_Phdr *ph, uint8_t *to)
{
    struct stat st;
    size_t n = ph->p_filesz & ~(uint64_t)(PAGE - 1);
    if (n == 0 || (ph->p_offset | (uintptr_t)to) % PAGE != 0 || fstat(fd, &st) < 0 ||
        ph->p_offset > (uint64_t)st.st_size || n > (uint64_t)st.st_size - ph->p_offset)
        return 0;
    void *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, (off_t)ph->p_offset);
    if (p == MAP_FAILED)
        return 0;
    if (mremap(p, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED)
        return n;
    (void)munmap(p, n);
    return 0;
}

static int load_segment(int fd, enum elf_way way, const Elf64_Phdr *ph, const struct guest_mem *mem,
                        uint64_t lowest)
{
    if (ph->p_memsz == 0)
        return 0;
    if (ph->p_filesz > ph->p_memsz || ph->p_paddr < lowest)
        return -ENOEXEC;
    uint8_t *to = guest_mem_ptr(mem, ph->p_paddr, ph->p_memsz);
    if (!to)
        return -EFBIG;
    size_t done = way == ELF_MAP ? map_pages(fd, ph, to) : 0;
    return read_at(fd, to + done, ph->p_filesz - done, ph->p_offset + done);
}

static bool right_kind(const Elf64_Ehdr *eh, unsigned machine)
{
    return memcmp(eh->e_ident, ELFMAG, SELFMAG) == 0 && eh->e_ident[EI_CLASS] == ELFCLASS64 &&
           eh->e_ident[EI_DATA] == ELFDATA2LSB && eh->e_machine == machine &&
           eh->e_phentsize == sizeof(Elf64_Phdr) && eh->e_phnum > 0 && eh->e_phnum <= SEGMENTS_MAX;
}

static int elf_load(int fd, enum elf_way way, const Elf64_Ehdr *eh, const struct guest_mem *mem,
                    uint64_t lowest, uint64_t *entry)
{
    Elf64_Phdr ph[SEGMENTS_MAX] = {0};
    bool found = false, inside = false;
    int r = read_at(fd, ph, eh->e_phnum * sizeof(ph[0]), eh->e_phoff);
    for (unsigned i = 0; r == 0 && i < eh->e_phnum; i++)
        if (ph[i].p_type == PT_NOTE && !found)
            r = read_notes(fd, &ph[i], entry, &found);
    for (unsigned i = 0; r == 0 && i < eh->e_phnum; i++) {
        if (ph[i].p_type != PT_LOAD)
            continue;
        r = load_segment(fd, way, &ph[i], mem, lowest);
        inside = inside || (found && *entry - ph[i].p_paddr < ph[i].p_memsz);
    }
    return r < 0 ? r : found && inside && *entry <= UINT32_MAX ? 0 : -ENOSYS;
}

int elf_load_kernel(int fd, enum elf_way way, unsigned machine, const struct guest_mem *mem,
                    uint64_t lowest, uint64_t *entry, struct err *e)
{
    Elf64_Ehdr eh;
    uint64_t at = 0;
    int r = read_at(fd, &eh, sizeof(eh), 0);
    if (r == 0)
        r = right_kind(&eh, machine) ? elf_load(fd, way, &eh, mem, lowest, &at) : -ENOEXEC;
    switch (r) {
    case 0:
        *entry = at;
        return 0;
    case -ENOEXEC:
        return err_set(e, ENOEXEC, "the guest kernel is damaged, or not for this machine");
    case -EFBIG:
        err_set(e, EFBIG, "the guest kernel does not fit into the guest's memory");
        err_hint(e, "use --memory to give the sandbox more");
        return r;
    case -ENOSYS:
        return err_set(e, ENOEXEC, "the guest kernel has no PVH entry (CONFIG_PVH)");
    default:
        return err_sys(e, -r, "cannot read the guest kernel");
    }
}
