/* A log file that the monitor appends lines to: buffered, rotated, never in the sandbox's way.
 *
 * The owner puts lines into `pending` and decides when to flush. Pending lines are written as a
 * whole, after a rotation (NAME -> NAME.1 -> NAME.2) if they would not fit. Errors never stop the
 * sandbox: after the first failed write the log is `broken`, and nothing more is written.
 */
#pragma once

#include "logs/format.h"
#include "util/buf.h"

#include <stdint.h>
#include <time.h>

enum { LOG_PENDING_MAX = 256 * 1024 + 2 * LOG_LINE_MAX };

struct log_writer {
    int dirfd;        /* the logs directory; not owned */
    const char *name; /* "exec.log" */
    int fd;
    uint64_t size;
    struct buf pending;
    int broken;       /* -errno of the first write that failed */
    time_t stamp_sec; /* the second that stamp[] shows */
    char stamp[sizeof("2026-01-02T03:04:05.")];
};

/* Appends to the newest file, after ending a line that a crash cut short. */
int log_writer_open(struct log_writer *l, int logs_dirfd, const char *name);
void log_writer_flush(struct log_writer *l);
void log_writer_close(struct log_writer *l); /* flushes */

/* Parts of lines, written to `to`, which has room; each returns the new end. */
uint8_t *log_put_text(uint8_t *to, const char *s);
uint8_t *log_put_decimal(uint8_t *to, uint64_t v, int width);
/* The current time, without the Z. */
uint8_t *log_put_time(struct log_writer *l, uint8_t *to);
/* Writes n bytes as the inside of a JSON string; `to` has room for 6 n + 8. NULL if they are not
 * text: not UTF-8, or containing a NUL (which takes six bytes, and which not every JSON reader
 * accepts). */
uint8_t *log_escape(uint8_t *to, const uint8_t *p, size_t n);
