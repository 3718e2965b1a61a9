/* One line of a log file, and points in time as log files and users write them. */
#pragma once

#include "logs/format.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_TIME_LEN = 40 };

struct log_entry {
    uint64_t t_ns;
    enum log_source s;
    uint32_t id;         /* 0 = none */
    const uint8_t *data; /* the bytes as the command wrote them, and a NUL */
    size_t len;
    char t[LOG_TIME_LEN]; /* the time as written in the file */

    json_t *json;     /* the line; owns `data`, unless */
    uint8_t *decoded; /* that was base64 */
};

/* -EINVAL for anything that is not a whole line of a log, such as one truncated by a crash. On
 * success the entry is released with log_entry_free. */
int log_line_parse(const char *line, size_t n, struct log_entry *ret);
/* The same for logs of other objects with a "t"; their other members are in `json`. */
int log_record_parse(const char *line, size_t n, struct log_entry *ret);
typedef int (*log_parse_fn)(const char *line, size_t n, struct log_entry *ret);
void log_entry_free(struct log_entry *e); /* also an entry that is all zeros */

/* The entry as `logs --json` shows it, without newline, to be freed; NULL if memory is short.
 * ascii: without anything that a terminal might interpret. */
char *log_entry_json(const struct log_entry *e, bool ascii);

/* 2026-01-02T03:04:05.678Z or +02:00 for Z. -EINVAL; -ERANGE before 1970 or after 2500. */
int time_parse_rfc3339(const char *s, size_t n, uint64_t *ret_ns);
/* What --since and --until take: RFC 3339, local time as YYYY-MM-DD[ HH:MM[:SS]] (or with a T),
 * or a duration before now (10m). */
int time_parse_when(const char *s, uint64_t now_ns, uint64_t *ret_ns);

const char *log_source_name(enum log_source s);
