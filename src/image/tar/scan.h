/* Lists what is in a tar file, and where: its members by name, without their content.
 *
 * Archives of images (`docker save`, OCI layouts) are tars of documents and layers. One scan of the
 * headers (read.h) finds their members; names are only ever compared, never used on the host.
 *
 * 1. At most TAR_MEMBERS_MAX entries, with names below TAR_NAME_MAX, within the file's length. 2. A
 * duplicate name is refused: no tool writes that. 3. Directories, devices and FIFOs are skipped.
 */
#pragma once

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

/* fd: a regular file; its position is neither used nor changed. Errors are those of tar_next(). */
int tar_scan(int fd, struct tar_members *ret, struct err *e);
void tar_members_free(struct tar_members *m);

/* The file that a name refers to, following links inside the archive; NULL if there is none. */
const struct tar_member *tar_find(const struct tar_members *m, const char *name);
