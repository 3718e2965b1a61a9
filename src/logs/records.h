/* Logs of records (JSON objects, one a line, with their time in "t"), shown in the order of time:
 * one log, or many merged, from a point in time, the last few only, or on and on.
 *
 * What a record looks like is the caller's business: `render` makes a line of it, or nothing.
 */
#ifndef MSB_LOGS_RECORDS_H
#define MSB_LOGS_RECORDS_H

#include "logs/files.h"
#include "util/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct record_source {
    struct log_stream stream;
    int dirfd; /* owned */
    char *label;
    bool unordered;   /* records may be later in the file than others that are newer: what is there
                       * at first is read as a whole, and sorted */
    bool has;         /* stream.entry is the next one of it */
    bool gone;        /* dropped when all of it was read */
    uint64_t last_ns; /* time of the last record that was shown */
};

/* A line that was rendered before its turn. */
struct record_line {
    uint64_t t_ns;
    size_t nth; /* of those of the same time the first comes first */
    char *text;
};

struct records {
    /* The caller's. */
    uint64_t since_ns;
    bool has_tail;
    uint64_t tail;
    bool follow;
    /* Appends a line to `out` (1), or not (0), or -errno. */
    int (*render)(void *ctx, const struct record_source *from, const struct log_entry *e,
                  struct buf *out);
    /* With `follow`, before each look: may add sources and mark others as gone; false: this look
     * is the last. */
    bool (*more)(void *ctx, struct records *r);
    void *ctx;

    struct record_source **src;
    size_t n;
    struct buf out;
    struct record_line *early;
    size_t n_early, cap_early, at_early;
    char **kept; /* the last `tail` lines: a ring */
    size_t n_kept, cap_kept, first_kept;
    bool keeping;
};

/* A record as one line of JSON, with sorted keys; `ascii`: no byte of it can mean anything to a
 * terminal. Takes j; NULL is -ENOMEM. */
int record_json(json_t *j, bool ascii, struct buf *out);

/* Takes dirfd, in any case. label may be NULL. */
int records_add(struct records *r, int dirfd, const char *name, const char *label);
/* To standard output. -EPIPE when its reader has gone. */
int records_show(struct records *r);
void records_free(struct records *r);

#endif
