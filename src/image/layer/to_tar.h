/* Turns a layer's EROFS file back into a tar.
 *
 * Entries are sorted by name, marks become the .wh. names of image layers, and hard links to files
 * in lower layers come first (an entry of the same archive must not precede them). Implicit
 * directories are omitted. Converting the tar gives the same EROFS file again, and so the same tar:
 * saving is stable.
 */
#pragma once

#include "image/tar/write.h"
#include "util/err.h"

/* fd: a layer's file. Flushes nothing. */
int layer_write_tar(int fd, struct tar_out *o, struct err *e);
/* Computes the digest and length of the tar. */
int layer_measure_tar(int fd, struct digest *ret, uint64_t *ret_size, struct err *e);
