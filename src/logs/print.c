#include "logs/print.h"

#include "util/term.h"
#include "util/utf8.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { SINK_FLUSH_AT = 64 * 1024, SINK_MAX = 4 * 1024 * 1024 };

/* --- defusing --- */

static int show_byte(struct buf *out, uint8_t c)
{
    if (c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7f))
        return buf_append(out, &c, 1);
    if (c < 0x20 || c == 0x7f)
        return buf_append(out, (const char[]){'^', (char)(c ^ 0x40)}, 2);
    static const char hex[] = "0123456789abcdef";
    return buf_append(out, (const char[]){'\\', 'x', hex[c >> 4], hex[c & 0xf]}, 4);
}

static int show_held(struct defuser *d, struct buf *out)
{
    int r = 0;
    for (size_t i = 0; i < d->n_held && r == 0; i++)
        r = show_byte(out, d->held[i]);
    d->n_held = 0;
    d->state = DEFUSE_TEXT;
    return r;
}

static void hold(struct defuser *d, uint8_t c, int state)
{
    d->held[d->n_held++] = c;
    d->state = (__typeof__(d->state))state;
}

/* c is the next byte of a character that is not ASCII; *again: it is not part of it, and is still to
 * be handled. */
static int step_utf8(struct defuser *d, struct buf *out, uint8_t c, bool *again)
{
    uint32_t cp;
    hold(d, c, DEFUSE_UTF8);
    int len = utf8_char(d->held, d->n_held, &cp);
    if (len == 0)
        return 0;
    if (len < 0) {
        if (d->n_held > 1) {
            d->n_held--;
            *again = true;
        }
        return show_held(d, out);
    }
    size_t n = d->n_held;
    d->n_held = 0;
    d->state = DEFUSE_TEXT;
    if ((cp >= 0x80 && cp < 0xa0) || utf8_reorders(cp))
        return buf_printf(out, "<U+%04X>", cp);
    return buf_append(out, d->held, n);
}

static int step_csi(struct defuser *d, struct buf *out, uint8_t c, bool *again)
{
    bool parameter = (c >= '0' && c <= '9') || c == ';' || c == ':';
    if (parameter && d->n_held < DEFUSE_HELD_MAX - 1) {
        hold(d, c, DEFUSE_CSI);
        return 0;
    }
    if (c != 'm') {
        *again = true;
        return show_held(d, out);
    }
    hold(d, c, DEFUSE_TEXT);
    size_t n = d->n_held;
    d->n_held = 0;
    if (d->strip_colors)
        return 0;
    d->colored = true;
    return buf_append(out, d->held, n);
}

static int step_text(struct defuser *d, struct buf *out, uint8_t c)
{
    if (c == '\r')
        d->state = DEFUSE_CR;
    else if (c == 0x1b)
        hold(d, c, DEFUSE_ESC);
    else if (c >= 0x80)
        return step_utf8(d, out, c, &(bool){false});
    else
        return show_byte(out, c);
    return 0;
}

static int step(struct defuser *d, struct buf *out, uint8_t c)
{
    bool again = false;
    int r = 0;
    switch (d->state) {
    case DEFUSE_TEXT:
        return step_text(d, out, c);
    case DEFUSE_CR: /* before a newline it is redundant; alone it would overwrite the line */
        if (c == '\r')
            return 0;
        d->state = DEFUSE_TEXT;
        if (c != '\n')
            r = show_byte(out, '\r');
        again = true;
        break;
    case DEFUSE_ESC:
        if (c == '[') {
            hold(d, c, DEFUSE_CSI);
            return 0;
        }
        r = show_held(d, out);
        again = true;
        break;
    case DEFUSE_CSI:
        r = step_csi(d, out, c, &again);
        break;
    case DEFUSE_UTF8:
        r = step_utf8(d, out, c, &again);
        break;
    }
    return r == 0 && again ? step_text(d, out, c) : r;
}

static size_t plain_run(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && ((p[i] >= 0x20 && p[i] < 0x7f) || p[i] == '\n'))
        i++;
    return i;
}

int defuse(struct defuser *d, struct buf *out, const uint8_t *p, size_t n)
{
    while (n) {
        size_t run = d->state == DEFUSE_TEXT ? plain_run(p, n) : 0;
        int r = run ? buf_append(out, p, run) : step(d, out, *p);
        if (r < 0)
            return r;
        run = run ? run : 1;
        p += run;
        n -= run;
    }
    return 0;
}

int defuse_end(struct defuser *d, struct buf *out)
{
    int r = d->state == DEFUSE_CR ? show_byte(out, '\r') : show_held(d, out);
    d->state = DEFUSE_TEXT;
    if (r == 0 && d->colored)
        r = buf_append(out, SGR_RESET, strlen(SGR_RESET));
    d->colored = false;
    return r;
}

/* --- sinks --- */

void sink_open(struct sink *s, int fd, enum color_choice c, bool escape)
{
    *s = (struct sink){.fd = fd, .safe = escape || isatty(fd)};
    s->colors = c == COLOR_ALWAYS || (c == COLOR_AUTO && term_colors(fd));
    s->d.strip_colors = c == COLOR_NEVER;
    buf_init(&s->out, SINK_MAX);
}

int sink_flush(struct sink *s)
{
    while (buf_len(&s->out)) {
        ssize_t n = write(s->fd, buf_head(&s->out), buf_len(&s->out));
        if (n >= 0) {
            buf_consume(&s->out, (size_t)n);
        } else if (errno == EAGAIN) { /* we inherited it non-blocking */
            struct pollfd p = {.fd = s->fd, .events = POLLOUT};
            (void)poll(&p, 1, -1);
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static int flush_when_full(struct sink *s)
{
    return buf_len(&s->out) >= SINK_FLUSH_AT ? sink_flush(s) : 0;
}

int sink_write(struct sink *s, const void *p, size_t n)
{
    int r = s->safe ? defuse(&s->d, &s->out, p, n) : buf_append(&s->out, p, n);
    return r < 0 ? r : flush_when_full(s);
}

int sink_ours(struct sink *s, const char *text)
{
    int r = s->safe ? defuse_end(&s->d, &s->out) : 0;
    if (r == 0)
        r = buf_append(&s->out, text, strlen(text));
    return r < 0 ? r : flush_when_full(s);
}

int sink_close(struct sink *s)
{
    int r = s->safe ? defuse_end(&s->d, &s->out) : 0;
    if (r == 0)
        r = sink_flush(s);
    buf_free(&s->out);
    return r;
}
