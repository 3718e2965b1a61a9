/* Logs of records (JSON objects, one per line, with their time in "t"), shown in chronological
 * order: one log or several merged, from a point in time, only the last few, or followed.
 *
 * How a record is shown is up to the caller: `render` turns it into a line, or nothing.
 */
#pragma once

#include "logs/files.h"
#include "logs/ring.h"
#include "util/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct record_source {
    struct log_stream stream;
    int dirfd; /* owned */
    char *label;
    bool unordered;   /* its records may not be in chronological order: the existing ones are read
                       * completely, and sorted */
    bool has;         /* stream.entry is its next record */
    bool gone;        /* to be dropped once all of it is read */
    uint64_t last_ns; /* time of the last record that was shown */
};

/* A line that was rendered before its turn. */
struct record_line {
    uint64_t t_ns;
    size_t nth; /* keeps the order of those with the same time */
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
    /* With `follow`, called before each check: may add sources and mark others as gone; false: this
     * check is the last. */
    bool (*more)(void *ctx, struct records *r);
    void *ctx;

    struct record_source **src;
    size_t n;
    struct buf out;
    struct record_line *early;
    size_t n_early, cap_early, at_early;
    bool keeping;     /* no line is printed yet */
    struct ring kept; /* the last `tail` lines */
};

/* A record as one line of JSON, with sorted keys; `ascii`: without anything that a terminal might
 * interpret. Takes j; NULL is -ENOMEM. */
int record_json(json_t *j, bool ascii, struct buf *out);

/* Takes dirfd, also on failure. label may be NULL. */
int records_add(struct records *r, int dirfd, const char *name, const char *label);
/* To standard output. -EPIPE if its reader has gone. */
int records_show(struct records *r);
void records_free(struct records *r);
