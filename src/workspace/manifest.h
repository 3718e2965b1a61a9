/* A directory tree's state: one digest over the names, kinds, modes, sizes, times and inodes of
 * everything in it, in an order that does not depend on the file system. Two equal digests mean
 * that the tree has not changed in between; contents are not read. */
#pragma once

#include "image/oci/digest.h"

#include <stdint.h>

enum { MANIFEST_ENTRIES_MAX = 1000 * 1000, MANIFEST_DEPTH_MAX = 256 };

struct manifest {
    struct digest digest;
    uint64_t entries;
    uint64_t bytes; /* of files */
};

/* Refuses trees that cannot be copied as they are: with sockets, pipes or devices, with mounts, too
 * deep, or with too many entries. `what` is for messages. */
int manifest_of(int dirfd, const char *name, const char *what, struct manifest *ret, struct err *e);
