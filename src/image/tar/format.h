/* Reading tar headers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/tar.h"

/* A numeric field; -EBADMSG. */
int tar_number(const char *p, size_t n, uint64_t *ret);
bool tar_checksum_fits(const struct tar_header *h);
/* Whether it is the block after the last entry. */
bool tar_is_zero(const struct tar_header *h);
