/* Archives that cannot be read in place, from a pipe or compressed, are first put into a file
 * without a name. A confined child decompresses them. */
#pragma once

#include <stdint.h>

#include "util/err.h"

/* A descriptor of the file, or -errno. in_fd is read from where it stands, to its end: gzip, zstd,
 * or as it is. The file is made in dirfd; more than max bytes are an error. */
int spool_archive(int in_fd, int dirfd, uint64_t max, struct err *e);
