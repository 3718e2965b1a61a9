/* Reading tar headers. */
#ifndef MSB_IMAGE_TAR_FORMAT_H
#define MSB_IMAGE_TAR_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/tar.h"

/* A numeric field; -EBADMSG. */
int tar_number(const char *p, size_t n, uint64_t *ret);
bool tar_checksum_fits(const struct tar_header *h);
/* The block after the last entry. */
bool tar_is_zero(const struct tar_header *h);

#endif
