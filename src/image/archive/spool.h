/* Archives that cannot be read in place (compressed, or from a pipe) are first copied to an unnamed
 * file. A confined child decompresses them. */
#pragma once

#include <stdint.h>

#include "util/err.h"

/* A descriptor of the file, or -errno. in_fd is read from its current position to its end: gzip,
 * zstd, or uncompressed. The file is created in dirfd; more than max bytes are an error. */
int spool_archive(int in_fd, int dirfd, uint64_t max, struct err *e);
