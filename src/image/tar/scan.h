/* What is in a tar file, and where: its members by name, without their content.
 *
 * Archives of images (`docker save`, OCI layouts) are tars of documents and layers. Their members
 * are found by one scan of the headers; names are only ever compared, never used on the host. This
 * runs with the user's own rights, in the process that owns the cache, so it is a reader of its
 * own, small enough to be checked by hand, and not the library that parses layers in a jail: it
 * knows headers, long names (PAX and GNU) and sizes, and nothing else of tar.
 *
 * 1. Every number from the file is checked before it is used: sizes against the file's length,
 *    names against TAR_NAME_MAX, the count of members against TAR_MEMBERS_MAX.
 * 2. A name with a ".." in it, a name twice, a sparse member: refused, since no tool writes that.
 * 3. Leading "./" and "/" and doubled slashes mean nothing. Directories, devices and what else has
 *    no content for us are passed over.
 */
#ifndef MSB_IMAGE_TAR_SCAN_H
#define MSB_IMAGE_TAR_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "util/err.h"

enum {
    TAR_MEMBERS_MAX = 8192, /* entries of any kind */
    TAR_NAME_MAX = 1024,    /* bytes, terminator included; also of a link's target */
    TAR_LINKS_MAX = 16,     /* followed from one member to another */
};

enum tar_kind { TAR_FILE, TAR_SYMLINK, TAR_HARDLINK };

struct tar_member {
    char *name;
    char *link; /* where a link leads; NULL for a file */
    uint64_t offset, size;
    enum tar_kind kind;
};

struct tar_members {
    struct tar_member *v; /* sorted by name */
    size_t n;
};

/* fd: a regular file; its position is neither used nor changed. -ENOMSG: this is no tar. */
int tar_scan(int fd, struct tar_members *ret, struct err *e);
void tar_members_free(struct tar_members *m);

/* The file that a name stands for, links followed inside the archive; NULL when there is none. */
const struct tar_member *tar_find(const struct tar_members *m, const char *name);

#endif
