/* Reads a log and its rotated files as one stream of entries: forward, from any place, and across
 * rotations while the monitor writes; backward, to find where the last few entries begin without
 * reading what comes before.
 *
 * Invariants
 *   1. Files are opened newest first, and duplicates are dropped: a rotation in between
 *      neither hides nor repeats a file that existed when we began.
 *   2. A file is left for the next one only once its end was read after its rotation: it no
 *      longer grows then.
 *   3. What does not parse is skipped, wherever it is; no line longer than LOG_LINE_MAX is kept.
 */
#pragma once

#include "logs/line.h"
#include "util/buf.h"

#include <stdbool.h>
#include <sys/types.h>

enum { LOG_OPEN_MAX = LOG_FILES + 1 }; /* one that was rotated away, and the current ones */

struct log_file {
    int fd;
    dev_t dev;
    ino_t ino;
};

struct log_place {
    int file; /* index; == n_files: behind all of them */
    off_t off;
};

struct log_stream {
    int dirfd; /* not owned */
    const char *name;
    log_parse_fn parse; /* log_line_parse, unless the caller sets another before it reads */
    struct log_file files[LOG_OPEN_MAX]; /* oldest first */
    int n_files;

    /* forwards */
    struct log_place at; /* where to continue reading */
    struct buf buf;      /* read, not parsed yet */
    bool too_long;       /* inside a line that is too long: skip to its end */
    struct log_entry entry;
    struct log_place entry_at; /* where its line begins */

    /* backwards: what is left of files[back.file] is its first back.off bytes, of which the last
     * `window_len` are in `window` */
    struct log_place back;
    struct log_place end; /* of the last whole line, once log_stream_prev was called */
    char *window;
    size_t window_len, window_cap;
};

/* Omits files last written before since_ns. A log without files is empty. */
int log_stream_open(struct log_stream *s, int dirfd, const char *name, uint64_t since_ns);
void log_stream_close(struct log_stream *s);

/* 1: s->entry is the next entry; 0: no more for now; -errno. */
int log_stream_next(struct log_stream *s);
/* 1: s->entry is the entry before the previously returned one (at first: the very last), at
 * s->entry_at; 0: no more; -errno. */
int log_stream_prev(struct log_stream *s);
void log_stream_drop(struct log_stream *s); /* releases s->entry */

/* Forwards from there. */
void log_stream_seek(struct log_stream *s, struct log_place to);
/* At the end: looks for files that were rotated or created. */
int log_stream_refresh(struct log_stream *s);
