/* Tar headers, for reading and writing. */
#ifndef MSB_IMAGE_TAR_FORMAT_H
#define MSB_IMAGE_TAR_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAR_BLOCK = 512 };

struct tar_header {
    char name[100];
    char mode[8], uid[8], gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[8]; /* "ustar" 0 "00", or "ustar  " for GNU's */
    char uname[32], gname[32];
    char major[8], minor[8];
    char prefix[155];
    char pad[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a tar header is one block");

/* A numeric field; -EBADMSG. */
int tar_number(const char *p, size_t n, uint64_t *ret);
bool tar_checksum_fits(const struct tar_header *h);
/* The block after the last entry. */
bool tar_is_zero(const struct tar_header *h);

#endif
