/* Tar headers: POSIX ones, with PAX records for values that do not fit into them.
 *
 * The same entry always gives the same bytes: nothing is taken from the host. Shared by the agent,
 * which has no room for a library, and by image/tar, which also reads.
 */
#pragma once

#include "util/buf.h"

#include <stddef.h>
#include <stdint.h>

enum { TAR_BLOCK = 512 };

struct tar_header {
    char name[100];
    char mode[8], uid[8], gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[8]; /* "ustar" 0 "00", or "ustar  " for GNU's */
    char uname[32], gname[32];
    char major[8], minor[8];
    char prefix[155];
    char pad[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a tar header is one block");

struct tar_entry {
    const char *path;
    char type; /* '0' file, '1' hard link, '2' symlink, '3', '4' device, '5' directory, '6' */
    const char *link; /* of '1' and '2' */
    uint16_t mode;
    uint32_t uid, gid;
    int64_t mtime;
    uint32_t mtime_nsec;
    uint64_t size; /* of '0'; so many bytes must follow, then padding to a whole block */
    uint32_t major, minor;
    const struct buf *xattrs; /* made by tar_add_xattr(); NULL: none */
};

/* Appends the record of an extended attribute. -EINVAL: no record can hold its name. */
int tar_add_xattr(struct buf *records, const char *name, const void *value, size_t n);
/* Appends the entry's headers; -ENOSPC, -ENOMEM. */
int tar_format(struct buf *out, const struct tar_entry *t);
