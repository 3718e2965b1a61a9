#include "virtio/guest_mem.h"

#include <errno.h>
#include <string.h>

void guest_mem_clear(struct guest_mem *m)
{
    *m = (struct guest_mem){0};
}

int guest_mem_add(struct guest_mem *m, uint64_t gpa, uint64_t size, void *host)
{
    if (size == 0 || !host || size > SIZE_MAX || gpa > UINT64_MAX - size ||
        (uintptr_t)host > UINTPTR_MAX - size)
        return -EINVAL;
    for (unsigned i = 0; i < m->n; i++) {
        const struct guest_region *r = &m->region[i];
        if (gpa < r->gpa + r->size && r->gpa < gpa + size)
            return -EINVAL;
    }
    if (m->n == GUEST_REGIONS_MAX)
        return -ENOSPC;
    m->region[m->n++] = (struct guest_region){.gpa = gpa, .size = size, .host = host};
    return 0;
}

void *guest_mem_ptr(const struct guest_mem *m, uint64_t gpa, uint64_t len)
{
    if (len == 0)
        return NULL;
    for (unsigned i = 0; i < m->n; i++) {
        const struct guest_region *r = &m->region[i];
        /* gpa - r->gpa wraps to something huge when gpa is below the region. */
        if (gpa - r->gpa < r->size && len <= r->size - (gpa - r->gpa))
            return r->host + (gpa - r->gpa);
    }
    return NULL;
}

int guest_mem_write(const struct guest_mem *m, uint64_t gpa, const void *src, size_t len)
{
    void *p = guest_mem_ptr(m, gpa, len);
    if (!p)
        return -EFAULT;
    memcpy(p, src, len);
    return 0;
}
