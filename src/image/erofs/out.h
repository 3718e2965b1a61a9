/* Output for images: buffered writes at any ascending offset, with long runs of zeros left out so
 * that they become holes in the host's file. The file must be new: holes are where nothing was ever
 * written. Stops with -ENOSPC before the host's disk is completely full, since the source may be an
 * archive built to fill it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct erofs_out {
    int fd; /* not owned */
    uint64_t pos;
    size_t len;
    uint8_t *buf;       /* from the first write on */
    uint64_t unchecked; /* written since free space was last checked */
};

void erofs_out_init(struct erofs_out *o, int fd);
void erofs_out_free(struct erofs_out *o);
int erofs_out_write(struct erofs_out *o, uint64_t offset, const void *p, size_t n);
int erofs_out_flush(struct erofs_out *o);
