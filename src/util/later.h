/* Files that have their size and times, but whose content is still elsewhere: those of a workspace
 * in a bucket (s3/fill.c). An extended attribute marks them, with an id that says what to fetch. As
 * long as it is there, nobody has read or changed the file, and what it seems to hold means nothing.
 * The same goes for directories, whose content is their entries (s3/lazy.c).
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LATER_XATTR "user.msb.later"
enum { LATER_SIZE = 17 };             /* hex digits, and a NUL */
#define LATER_ROOT "0000000000000000" /* the id of the workspace's own directory */

/* Large files come in parts, as they are read: which are here is in a second attribute, a bit each, after
 * a number of the machine's present boot. Nobody waits for a part to be on disk: after a crash of the machine none
 * of them counts, and they are fetched again. */
#define LATER_PARTS_XATTR "user.msb.parts"
enum {
    LATER_PART = 1 << 20,
    LATER_RUN = 8, /* parts that are fetched at once where a file begins to be read through */
    LATER_RUN_MAX = 32,
    LATER_LARGE = 32 << 20,
    LATER_PARTS_SIZE = 1024
};
/* Finds out which boot it is, before a jail closes. False: unknown, and files come whole. */
bool later_know_boot(void);
/* The parts of the file that `path` leads to; 0 if they are not known. */
void later_parts(const char *path, uint8_t parts[LATER_PARTS_SIZE]);
/* The same for an open file. */
void later_parts_of(int fd, uint8_t parts[LATER_PARTS_SIZE]);
int later_parts_set(int fd, const uint8_t parts[LATER_PARTS_SIZE], uint32_t last);
static inline uint32_t later_count(uint64_t size)
{
    return (uint32_t)((size + LATER_PART - 1) / LATER_PART);
}
bool later_has_part(const uint8_t parts[LATER_PARTS_SIZE], uint32_t part); /* from 1 */

/* The mark of an open file. False: the content is here. */
bool later_get(int fd, char id[LATER_SIZE]);
/* Sets one of the two attributes, or removes it (value NULL), also of what its owner may not write:
 * the mode decides about attributes, however the file was opened. */
int later_mark(int fd, const char *xattr, const void *value, size_t size);
/* The error for a caller that cannot wait for the content. */
int later_missing(const char *path, struct err *e);
/* Opens such a file for reading and writing, whatever its mode says, if it is our own. `path` leads
 * to a descriptor of it. */
int later_open(const char *path);
/* The same for a directory, which is only read. */
int later_open_dir(const char *path);

/* Between the process that serves such a file to a guest and the one that fetches it (SOCK_SEQPACKET).
 * Each request passes the file or directory, opened by the functions above; the answer comes when the
 * mark is gone, or says why it is not. */
struct later_request {
    uint32_t number; /* not 0 */
    uint32_t empty;  /* 1: the content is not needed, the file is about to be truncated */
    uint32_t part;   /* not 0: only this one is wanted, counted from 1; the mark stays */
    uint32_t count;  /* how many from there on will be: the answer does not wait for the others */
};
struct later_answer {
    uint32_t number; /* 0: all that were asked for; they are lost */
    int32_t error;   /* -errno, or 0; to all: 0 = ask again */
};
