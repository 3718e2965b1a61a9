/* Where log text goes: stdout and stderr, without letting it control the user's terminal.
 *
 * A command's output may contain any bytes, and reading a log must be safe however hostile they
 * are. So on a terminal only text, newlines, tabs and colors (SGR sequences) pass. All other
 * control characters are shown instead of interpreted: ESC as ^[, C1 controls and the marks that
 * reorder text as <U+009B>, bytes that are not UTF-8 as \xff. A file or a pipe gets the bytes
 * unchanged, unless the user asks otherwise: whether a terminal is at its other end cannot be seen
 * from here.
 */
#pragma once

#include "util/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEFUSE_HELD_MAX = 32 };

struct defuser {
    enum { DEFUSE_TEXT, DEFUSE_CR, DEFUSE_ESC, DEFUSE_CSI, DEFUSE_UTF8 } state;
    uint8_t held[DEFUSE_HELD_MAX]; /* the sequence so far, in the last three states */
    size_t n_held;
    bool strip_colors;
    bool colored; /* a color may be on */
};

/* Appends p to `out`, made safe. A sequence may be split over several calls. */
int defuse(struct defuser *d, struct buf *out, const uint8_t *p, size_t n);
/* Ends an incomplete sequence, and turns colors off. */
int defuse_end(struct defuser *d, struct buf *out);

struct sink {
    int fd;
    bool safe;   /* what passes is defused */
    bool colors; /* our own: time stamps, ids */
    struct defuser d;
    struct buf out;
};

enum color_choice { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER };

/* escape: defuse even what goes to a file or a pipe. */
void sink_open(struct sink *s, int fd, enum color_choice c, bool escape);
/* Ends, flushes and releases it; returns the first error. */
int sink_close(struct sink *s);
/* Writes a command's bytes; sink_ours: msb's own text, which is trusted. */
int sink_write(struct sink *s, const void *p, size_t n);
int sink_ours(struct sink *s, const char *text);
int sink_flush(struct sink *s); /* -EPIPE: the reader has gone */
