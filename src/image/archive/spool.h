/* An archive that cannot be read twice (a pipe) or not as it is (compressed) is put into a file
 * first, one that has no name. A confined child decompresses it. */
#ifndef MSB_IMAGE_ARCHIVE_SPOOL_H
#define MSB_IMAGE_ARCHIVE_SPOOL_H

#include <stdint.h>

#include "util/err.h"

/* A descriptor of the file, or -errno. in_fd is read from where it stands, to its end: gzip, zstd,
 * or as it is. The file is made in dirfd; more than max bytes are an error. */
int spool_archive(int in_fd, int dirfd, uint64_t max, struct err *e);

#endif
