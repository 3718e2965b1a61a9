/* Reads tar archives entry by entry, in one pass: POSIX headers, PAX and GNU extensions.
 *
 * It reads what users give to `msb load` and `msb cp -`, with the user's own rights, so it is small
 * enough to be reviewed by hand; layers are parsed by a library, in a jail (layer/source_tar.h).
 *
 * 1. Every number is checked before it is used. Sizes, names, the length of extended headers and
 *    the number of entries are bounded.
 * 2. Paths are cleaned: a leading "/", empty components and "." are dropped; ".." is refused.
 * 3. Extended headers apply as in POSIX. One of type `x` is for the next entry; one of type `g`
 *    for all that follow, unless a later `g` or the entry's own `x` says otherwise. An empty value
 *    stands for the field in the entry's header. In a `g`, path, linkpath and size are refused:
 *    no tool writes them, and readers disagree about their meaning.
 * 4. Sparse files are refused, and entries of unknown types skipped.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/err.h"

enum { TAR_PATH_MAX = 4095 }; /* bytes of a path or a link's target, regardless of the options */

struct tar_reader_options {
    bool file; /* fd is a regular file: read from its beginning, without moving its position */
    uint64_t entries_max; /* extended headers included */
    size_t path_max;      /* at most TAR_PATH_MAX */
};

/* An entry; the strings belong to the reader, and are valid until the next tar_next(). */
struct tar_item {
    char *path; /* clean; "" only for a directory. The caller may change it */
    char *link; /* of '1' and '2', as the archive has it */
    char type;  /* '0' file, '1' hard link, '2' symlink, '3', '4' device, '5' directory, '6' FIFO */
    uint32_t mode, uid, gid;
    int64_t mtime_ns;
    uint64_t size;   /* of '0' */
    uint64_t offset; /* of its content in the archive */
};

struct tar_reader;

/* *ret: to be freed with free(). fd and e stay the caller's and must outlive it; e gets the errors
 * of all calls. */
int tar_reader_new(struct tar_reader **ret, int fd, const struct tar_reader_options *o,
                   struct err *e);

/* Gets the next entry, skipping the rest of the last one: 1; 0 at the end, to which a stream is
 * then read. -ENOMSG: not a tar archive; -EPERM: an unsafe path; -E2BIG; -EBADMSG. */
int tar_next(struct tar_reader *r, struct tar_item *ret);
/* Gets more of a file's content: returns the number of bytes at *ret, 0 at its end. */
ssize_t tar_data(struct tar_reader *r, const void **ret);
/* Bytes of the archive read so far. */
uint64_t tar_offset(const struct tar_reader *r);

/* "entry 3 of the archive WHY": -EBADMSG. */
int tar_bad_entry(struct tar_reader *r, const char *why);

/* Cleans a path in place as above; -EPERM if it contains a "..". */
int tar_clean_path(char *path);
