/* Turns a stored layer into a blob for a registry: its tar, compressed with gzip, which all
 * registries and their clients support. The same layer gives the same bytes. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "util/err.h"

struct layer_blob {
    struct digest diff_id; /* of the tar */
    struct digest digest;
    uint64_t size;
};

/* layer_fd: a layer's file; out_fd: an empty file. If *cancel becomes true (cancel may be NULL):
 * -EINTR. */
int layer_pack(int layer_fd, int out_fd, const atomic_bool *cancel, struct layer_blob *ret,
               struct err *e);
