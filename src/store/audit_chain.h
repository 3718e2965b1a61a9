/* The file of the audit log: a chain of records.
 *
 * A record begins with its number and the SHA-256 of the record before it (the exact bytes of that
 * line, without its newline):
 *
 *     {"seq":7,"prev":"<64 hex digits>","t":...}
 *
 * The first one has the number 1 and names 64 zeros. The chain continues across rotations; the
 * first record of a file says so after its hash ("begins":true), unless it is a repair. audit.head
 * holds the number and the hash of the newest record, and where it ends in the file:
 *
 *     SEQ END INODE HASH            three numbers of 20 digits, 128 bytes with the newline
 *
 * Invariants
 *   1. Everything is read and written under an exclusive flock on audit.log, whose name must still
 *      lead to the locked file: a file that was rotated never changes.
 *   2. Numbers never go back: if the file ends before the record that audit.head names, it was
 *      truncated, and the next record continues from audit.head, so that the gap stays visible.
 *   3. A writer that is killed leaves at most one line without an end. The next writer ends it and
 *      appends a record "repair" with its length and hash, which follows the last whole record.
 *   4. Lines without a number (from versions before the chain) are only valid before record 1.
 *
 * sdk/python/msb/_audit.py writes the same.
 */
#pragma once

#include "image/oci/digest.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AUDIT_NAME "audit.log"
#define AUDIT_HEAD_NAME "audit.head"

/* A record, by its number and its hash: what --anchor prints. */
struct audit_mark {
    uint64_t seq; /* 0: none */
    char hash[DIGEST_HEX_SIZE];
};
enum { AUDIT_MARK_TEXT_MAX = 96 };
void audit_mark_text(const struct audit_mark *m, char out[AUDIT_MARK_TEXT_MAX]); /* SEQ:HASH */
int audit_mark_parse(const char *text, struct audit_mark *ret);                  /* -EINVAL */

/* Appends a record. body: a JSON object with at least one member, as text. *line, if not NULL: the
 * whole line without its newline, to be freed. */
int audit_chain_append(int home_fd, const char *body, size_t n, char **line);

/* audit.head: -ENOENT if there is none, -EINVAL if it is damaged. */
struct audit_head {
    struct audit_mark mark;
    uint64_t end, ino;
};
int audit_head_load(int home_fd, struct audit_head *ret);

/* --- lines, of any length, in bounded memory --- */

struct audit_reader {
    int fd;         /* not owned */
    off_t at, end;  /* where the next chunk is, and how far to read */
    uint8_t *chunk; /* read, not examined yet: from `used` to `have` */
    size_t used, have;
    /* The line. */
    char *text;   /* its beginning: all of it, up to LOG_LINE_MAX; and a NUL */
    uint64_t n;   /* its length */
    uint64_t nth; /* counted from 1 */
    bool whole;   /* it has an end */
    char hash[DIGEST_HEX_SIZE];
};
/* Lines of fd from `at` to `end`. */
int audit_reader_open(struct audit_reader *r, int fd, off_t at, off_t end);
void audit_reader_close(struct audit_reader *r);      /* may be called twice */
int audit_reader_next(struct audit_reader *r);        /* 1: there is one; 0: no more; -errno */
bool audit_reader_fits(const struct audit_reader *r); /* `text` is all of it */

/* The number and the hash at the beginning of a line; false if it has none. */
bool audit_link_parse(const char *text, size_t n, struct audit_mark *ret);
