/* The writable layer of a sandbox: a sparse ext4 file whose size is the disk quota.
 *
 * mke2fs takes tens of milliseconds, too long for `create`, so each size is formatted once, as a
 * template in the cache. A new layer is a clone of it: by reflink where the host's file system
 * supports it, else by copying the few blocks that hold data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/err.h"

#define UPPER_SIZE_MIN (16ULL << 20)
#define UPPER_SIZE_MAX (8ULL << 40)
/* Sizes are rounded up to a multiple of this. */
#define UPPER_SIZE_ALIGN (1ULL << 20)

/* Creates dest_dirfd/name, a fresh ext4 file system of `size` bytes, mode 0600. The name appears
 * once the file is complete; -EEXIST if it exists already. Templates live in
 * cache_dirfd/"upper". Unless it is kept, i.e. mounted more than once, its metadata has no
 * checksums: they would tell of damage only while it is mounted. */
int upper_create(int cache_dirfd, int dest_dirfd, const char *name, uint64_t size, bool kept,
                 struct err *e);

/* Enlarges the disk dirfd/name; the guest's kernel grows the file system in it. Does nothing if it
 * is large enough. If interrupted, it leaves the old size or the new. */
int upper_grow(int dirfd, const char *name, uint64_t size, struct err *e);

/* The program that formats them; a bare name if it can only be found on PATH. */
const char *upper_mke2fs(void);
