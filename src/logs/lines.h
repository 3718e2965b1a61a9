/* Lines from log entries: put together from pieces, filtered, counted, prefixed and printed.
 *
 * Memory is bounded: at most LINES_OPEN_MAX unfinished lines of at most LOG_CHUNK_MAX bytes are
 * held (a longer line is shown in parts), and the last few lines for --tail.
 */
#pragma once

#include "logs/line.h"
#include "logs/print.h"
#include "logs/ring.h"

#include <regex.h>

enum { LINES_OPEN_MAX = 64 };

struct open_line {
    struct buf text; /* empty = the slot is free */
    enum log_source s;
    uint32_t id;
    char t[LOG_TIME_LEN]; /* when its first byte was written */
};

struct kept_line {
    enum log_source s;
    uint32_t id;
    char t[LOG_TIME_LEN];
    size_t n;
    uint8_t text[];
};

struct lines {
    struct sink *out, *err;
    const regex_t *grep; /* NULL = all lines */
    bool timestamps, show_id;
    bool color_sessions; /* each session in its own color, if colors are wanted */

    struct open_line open[LINES_OPEN_MAX];
    unsigned next_open; /* the slot to reuse when none is free */

    bool keeping;     /* no line is printed: the last kept.max are kept */
    struct ring kept; /* struct kept_line */
};

void lines_init(struct lines *l, struct sink *out, struct sink *err);
void lines_free(struct lines *l);
/* Adds the entry's bytes. Each returns 0 or -errno (of printing, or -ENOMEM). */
int lines_add(struct lines *l, const struct log_entry *e);
/* Prints what was kept; from now on, lines are printed as they come. */
int lines_show_kept(struct lines *l);
/* No more will come: ends unfinished lines. */
int lines_end(struct lines *l);
