/* Where images come from: a directory on the host, or a tar archive.
 *
 * Both become a tree and its data. A directory is walked twice: a scan of names and attributes,
 * cheap enough for every `create`, yields the tree and a key that changes whenever anything in the
 * directory does; contents are read only if no image exists for the key. An archive is read once,
 * from front to end.
 */
#pragma once

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/erofs/erofs.h"
#include "image/erofs/tree.h"
#include "image/oci/digest.h"
#include "util/err.h"

/* Directories.
 *
 * Symlinks are never followed, not even if one is created during the walk. A directory on another
 * file system (a mount point) is taken as an empty directory. Hard links are kept. If the caller is
 * not root, its files belong to root in the image: root owned them before an ordinary user unpacked
 * them.
 */
struct source_dir {
    int fd;           /* not owned */
    const char *name; /* for messages */
    /* A directory to treat as empty: the cache, if it lies inside what is being cached. */
    dev_t skip_dev;
    ino_t skip_ino;
    struct digest key;
    int64_t newest_ctime_ns; /* of anything in it */
};

/* Fills the tree and the key. */
int source_dir_scan(struct source_dir *s, struct tree *t, struct err *e);
/* Reads xattrs and contents. A file that has shrunk meanwhile is padded with zeros, one that has
 * grown is truncated: the caller scans again to find out whether that happened. */
int source_dir_load(struct source_dir *s, struct tree *t, struct erofs_writer *w, struct err *e);

/* Archives: tar in its v7, ustar, PAX and GNU forms, not compressed (decode.h does that). Run it
 * in a jail: see convert.h. */
struct source_tar {
    /* Gets the next bytes: returns how many, 0 at the end, or -errno with e set. They are valid
     * until the next call. Whole multiples of 512 save copies. */
    ssize_t (*next)(void *ctx, const void **ret, struct err *e);
    void *ctx;
    bool layer;      /* names starting with .wh. are whiteouts, as in image layers */
    locale_t locale; /* "C": see source_tar.c */
};

/* Loads what the C library otherwise loads on first use. Call it before the process is confined.
 * Safe from several threads. */
void source_tar_prepare(void);
/* Reads all bytes, including those after the end of the archive. */
int source_tar_load(struct source_tar *s, struct tree *t, struct erofs_writer *w, struct err *e);

/* Whether an extended attribute from the host or an archive goes into an image. Host labels
 * (SELinux, IMA), overlayfs's own marks and ours do not. */
bool source_wants_xattr(const char *name);
