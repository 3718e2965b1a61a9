/* `msb logs`: what the commands of a sandbox wrote, and what happened to it.
 *
 * Reads only the log files, so it works whether or not the sandbox is running. Entries of exec.log
 * and system.log are merged by time.
 *
 * Text output is the bytes as written: those of stderr go to stderr, all others to stdout. With
 * --timestamps, --show-id, --color-sessions or --grep, it is line by line: a line written in pieces
 * is put together (per exec and stream) and shown once it is complete. --tail counts lines. With
 * --json, everything is by entry, the unit of the files: one object per line, on stdout.
 */
#pragma once

#include "logs/format.h"
#include "logs/print.h"
#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

#define LOGS_ALL_SOURCES (1U << LOG_STDOUT | 1U << LOG_STDERR | 1U << LOG_OUTPUT | 1U << LOG_SYSTEM)
#define LOGS_DEFAULT_SOURCES (1U << LOG_STDOUT | 1U << LOG_STDERR | 1U << LOG_OUTPUT)

struct logs_options {
    unsigned sources; /* 1 << enum log_source */
    bool has_tail;
    uint64_t tail;
    uint64_t since_ns; /* 0 = from the beginning */
    uint64_t until_ns; /* 0 = to the end */
    bool follow;       /* until `alive` returns false and all is read */
    bool timestamps, show_id, color_sessions, json;
    bool escape;      /* escape as on a terminal, wherever it goes */
    const char *grep; /* POSIX extended regular expression; NULL = none */
    enum color_choice color;
    bool (*alive)(void *arg); /* whether there may be more */
    void *arg;
};

/* "stdout,stderr" or "all" to bits; -EINVAL if a name is unknown. */
int logs_parse_sources(const char *list, unsigned *ret);

/* Writes to fd 1 and 2. -EPIPE without a message if the reader has gone. */
int logs_show(int logs_dirfd, const struct logs_options *o, struct err *e);
