/* Writes tar archives: POSIX headers, with PAX records for values that do not fit into one.
 *
 * The same entries give the same bytes: times, owners and order are up to the caller, nothing is
 * taken from the host. Output is buffered, and optionally hashed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/erofs/tree.h"
#include "image/oci/digest.h"
#include "util/tar.h"

struct tar_out {
    int fd;              /* not owned; -1: nothing is written, only hashed and counted */
    struct hasher *hash; /* not owned; NULL: not hashed */
    int (*sink)(void *ctx, const void *p, size_t n); /* instead of fd; NULL: none. 0 or -errno */
    void *sink_ctx;
    uint64_t bytes; /* so far */
    size_t len;
    uint8_t *buf;
};

int tar_out_init(struct tar_out *o, int fd, struct hasher *hash); /* -ENOMEM */
void tar_out_free(struct tar_out *o);                             /* may be called twice */
int tar_out_write(struct tar_out *o, const void *p, size_t n);
int tar_out_flush(struct tar_out *o);

int tar_put_header(struct tar_out *o, const struct tar_entry *t);
/* -EINVAL: an attribute's name fits no record. */
int tar_put_header_xattrs(struct tar_out *o, const struct tar_entry *t, const struct tree_xattr *x);
int tar_put_padding(struct tar_out *o, uint64_t size);
int tar_put_end(struct tar_out *o);
/* A whole file: mode 0644, owned by root, with time 0. */
int tar_put_file(struct tar_out *o, const char *path, const void *p, size_t n);
