/* Tar archives as fuzz inputs. */
#pragma once

#include "image/tar/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static inline int memfile(void)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0)
        abort();
    return fd;
}

static inline void fix_checksum(struct tar_header *h)
{
    unsigned sum = 0;
    char text[16];
    memset(h->checksum, ' ', sizeof(h->checksum));
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += ((const uint8_t *)h)[i];
    (void)snprintf(text, sizeof(text), "%06o", sum & 0777777);
    memcpy(h->checksum, text, 7);
}

/* Walks the archive as a reader would and makes the checksums right, so that mutations get past
 * them. */
static inline void fix_headers(uint8_t *p, size_t n)
{
    for (size_t at = 0; at + TAR_BLOCK <= n;) {
        struct tar_header *h = (struct tar_header *)(void *)(p + at);
        uint64_t body;
        if (!tar_is_zero(h))
            fix_checksum(h);
        if (tar_number(h->size, sizeof(h->size), &body) < 0 || (h->type >= '1' && h->type <= '6'))
            body = 0;
        if (body > n)
            break;
        at += TAR_BLOCK + (body + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    }
}
