/* Finds the parts of an image archive by name, wherever they are: in a tar, a compressed tar, a
 * pipe, or a directory with an OCI layout. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/tar/scan.h"
#include "util/err.h"
#include "util/stream.h"

struct bundle {
    int fd; /* the tar, or the directory */
    bool directory;
    struct tar_members members; /* of a tar */
};

/* fd stays the caller's. tmp_fd: a directory for a temporary file, of at most max bytes. */
int bundle_open(struct bundle *b, int fd, int tmp_fd, uint64_t max, struct err *e);
void bundle_close(struct bundle *b);

/* *ret_size (may be NULL) is its length. */
bool bundle_has(const struct bundle *b, const char *name, uint64_t *ret_size);
/* Reads a whole part of at most max bytes, malloc'd and NUL-terminated. */
int bundle_read(const struct bundle *b, const char *name, size_t max, char **ret, size_t *ret_len,
                struct err *e);
/* Opens it as a stream; the bundle must outlive the stream. */
int bundle_stream(const struct bundle *b, const char *name, struct stream **ret, struct err *e);
