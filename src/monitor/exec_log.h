/* Writes exec.log and system.log (the format: logs/format.h).
 *
 * Lines are buffered for at most LOG_FLUSH_MS (the owner's timer calls exec_log_flush), and a crash
 * of the monitor loses no more than that. All output passes through here, so the JSON is made by
 * hand: each line is escaped in one pass straight into the write buffer.
 *
 * A UTF-8 character that two writes split is put together again: its beginning, at most three
 * bytes, is held back per exec and stream until the next write or flush. A character that takes
 * longer than that to arrive is logged as base64, so no byte is lost.
 */
#pragma once

#include "monitor/log_writer.h"

#include <stdint.h>

enum { LOG_FLUSH_MS = 50, LOG_CARRIES = 16 };

struct log_carry {
    enum log_source s;
    uint32_t id;
    uint8_t b[3];
    uint8_t n; /* 0 = the slot is free */
};

struct exec_log {
    struct log_writer w;
    struct log_carry carry[LOG_CARRIES];
    unsigned next_carry; /* the slot to reuse when none is free */
};

/* Appends to the newest file, after ending a line that a crash cut short. */
int exec_log_open(struct exec_log *l, int logs_dirfd, const char *name);
void exec_log_close(struct exec_log *l); /* flushes */
/* id 0 = none. Splits at LOG_CHUNK_MAX, not inside a UTF-8 character. */
void exec_log_write(struct exec_log *l, enum log_source s, uint32_t id, const void *p, size_t n);
void exec_log_printf(struct exec_log *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* LOG_SYSTEM */
void exec_log_flush(struct exec_log *l);
/* For signal handlers, just before the end: writes one line of plain ASCII at once, ahead of what
 * is pending, with the time of the line before it, to the second. */
void exec_log_last_line(const struct exec_log *l, const char *text);
