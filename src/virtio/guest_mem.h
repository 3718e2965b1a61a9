/* Guest memory, and the only way to touch it.
 *
 * A guest names memory by (address, length). Both are translated together, overflow-checked, and
 * must lie inside ONE region; the result is a host pointer that is valid for exactly that many
 * bytes. Nothing else in the project turns a guest's number into a pointer.
 *
 * The bytes behind such a pointer can change at any time (another virtual CPU, or the whole guest
 * kernel, is hostile). So whatever is to be *checked* is first copied with guest_copy(); only bulk
 * payload, which is not interpreted here, is used in place.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "util/iov.h"

enum { GUEST_REGIONS_MAX = 8 };

struct guest_region {
    uint64_t gpa;
    uint64_t size;
    uint8_t *host; /* not owned */
};

struct guest_mem {
    struct guest_region region[GUEST_REGIONS_MAX];
    unsigned n;
};

void guest_mem_clear(struct guest_mem *m);
/* -EINVAL for an empty, wrapping or overlapping region, -ENOSPC past GUEST_REGIONS_MAX. */
int guest_mem_add(struct guest_mem *m, uint64_t gpa, uint64_t size, void *host);

/* Where [gpa, gpa+len) lives, or NULL unless all of it is inside one region. len 0 is refused. */
void *guest_mem_ptr(const struct guest_mem *m, uint64_t gpa, uint64_t len);

/* 0, or -EFAULT and nothing was copied. */
int guest_mem_write(const struct guest_mem *m, uint64_t gpa, const void *src, size_t len);
