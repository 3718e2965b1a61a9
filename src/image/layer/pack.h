/* A stored layer as the blob that a registry holds: its tar, compressed by gzip, which all of them
 * and all their clients know. The same layer gives the same bytes. */
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

/* layer_fd: a layer's file; out_fd: an empty file. *cancel (may be NULL): -EINTR. */
int layer_pack(int layer_fd, int out_fd, const atomic_bool *cancel, struct layer_blob *ret,
               struct err *e);
