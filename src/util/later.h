/* Files whose size and times are set, but whose content is still elsewhere: in the bucket of a
 * workspace (s3/fill.c). They are marked by an extended attribute with an id of what to fetch. As
 * long as a file has it, it has not been read or changed, and what it seems to contain is
 * meaningless. The same goes for directories, whose content is their entries (s3/lazy.c).
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define LATER_XATTR "user.msb.later"
enum { LATER_SIZE = 17 };             /* hex digits, and a NUL */
#define LATER_ROOT "0000000000000000" /* the id of the workspace's own directory */

/* Large files are fetched in parts, as they are read: a second attribute has a bit for each part
 * that is here, after a number that identifies the machine's current boot. Parts are not synced to
 * disk: after a crash of the machine, none counts, and they are fetched again. */
#define LATER_PARTS_XATTR "user.msb.parts"
enum {
    LATER_PART = 1 << 20,
    LATER_RUN = 8, /* parts that are fetched at once when sequential reading of a file begins */
    LATER_RUN_MAX = 32,
    LATER_LARGE = 32 << 20,
    LATER_PARTS_SIZE = 1024
};
/* The largest file that has a bit for each of its parts; larger ones are fetched whole. */
#define LATER_PARTED_MAX ((LATER_PARTS_SIZE * 8ULL - 1) * LATER_PART)
/* Determines the current boot, before a jail closes. False: unknown, so files are fetched whole. */
bool later_know_boot(void);
/* The parts that are present in the file at `path`; all 0 if unknown. */
void later_parts(const char *path, uint8_t parts[LATER_PARTS_SIZE]);
/* The same for an open file. */
void later_parts_of(int fd, uint8_t parts[LATER_PARTS_SIZE]);
int later_parts_set(int fd, const uint8_t parts[LATER_PARTS_SIZE], uint32_t last);
static inline uint32_t later_count(uint64_t size)
{
    return (uint32_t)((size + LATER_PART - 1) / LATER_PART);
}
bool later_has_part(const uint8_t parts[LATER_PARTS_SIZE], uint32_t part); /* from 1 */

/* Gets the mark of an open file. False: it has none, and the content is here. */
bool later_get(int fd, char id[LATER_SIZE]);
/* Sets one of the two attributes, or removes it (value NULL), even on files that their owner may
 * not write: the mode decides about attributes, however the file was opened. */
int later_mark(int fd, const char *xattr, const void *value, size_t size);
/* The error for a caller that cannot wait for the content. */
int later_missing(const char *path, struct err *e);
/* What a read-only file of ours has in addition to its mode while the functions here make it
 * writable, and still has if they were killed (later.c). */
enum { LATER_LENT = S_IRUSR | S_IWUSR | S_ISVTX };
/* Opens such a file for reading and writing, whatever its mode says, if it is our own. `path` leads
 * to a descriptor of it. */
int later_open(const char *path);
/* The same, of a file that is open for reading. It changes no mode by path: Landlock does not
 * restrict that, so a process that it confines must not be able to (s3/confine.h). */
int later_reopen(int of);
/* The same for a directory, which is only read. */
int later_open_dir(const char *path);

/* Messages between the process that serves such a file to a guest and the one that fetches it
 * (SOCK_SEQPACKET). Each request passes the file or directory, opened by the functions above; the
 * answer comes once the mark is gone, or reports an error. */
struct later_request {
    uint32_t number; /* not 0 */
    uint32_t empty;  /* 1: the content is not needed, the file is about to be truncated */
    uint32_t part;   /* not 0: only this part is wanted, counted from 1; the mark stays */
    uint32_t count;  /* parts wanted from there on: the answer does not wait for the others */
};
struct later_answer {
    uint32_t number; /* 0: all pending requests, which are lost */
    int32_t error;   /* -errno, or 0; for all: 0 = ask again */
};
