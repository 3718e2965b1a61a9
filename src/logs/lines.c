#include "logs/lines.h"

#include "util/cleanup.h"
#include "util/term.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lines_init(struct lines *l, struct sink *out, struct sink *err)
{
    *l = (struct lines){.out = out, .err = err};
    for (size_t i = 0; i < LINES_OPEN_MAX; i++)
        buf_init(&l->open[i].text, LOG_CHUNK_MAX + 1);
}

void lines_free(struct lines *l)
{
    for (size_t i = 0; i < LINES_OPEN_MAX; i++)
        buf_free(&l->open[i].text);
    ring_free(&l->kept);
}

/* --- one line --- */

struct line {
    enum log_source s;
    uint32_t id;
    const char *t;
    const uint8_t *text; /* without its newline */
    size_t n;
};

/* Sessions are numbered as they begin, so those next to each other differ. */
static const char *session_color(const struct lines *l, const struct line *line)
{
    static const char *const colors[] = {SGR_CYAN,    SGR_GREEN, SGR_YELLOW,
                                         SGR_MAGENTA, SGR_BLUE,  SGR_RED};
    return l->color_sessions && line->id ? colors[(line->id - 1) % ARRAY_LEN(colors)] : NULL;
}

static int print_prefix(const struct lines *l, struct sink *to, const struct line *line)
{
    char prefix[LOG_TIME_LEN + 64];
    const char *session = session_color(l, line);
    const char *dim = to->colors ? SGR_DIM : "";
    const char *color = !to->colors ? "" : session ? session : SGR_CYAN;
    const char *reset = to->colors ? SGR_RESET : "";
    int n = 0;
    if (l->timestamps)
        n = snprintf(prefix, sizeof(prefix), "%s%s%s ", dim, line->t, reset);
    if (l->show_id && line->id)
        n += snprintf(prefix + n, sizeof(prefix) - (size_t)n, "%s[%u]%s ", color, line->id, reset);
    else if (l->show_id)
        n += snprintf(prefix + n, sizeof(prefix) - (size_t)n, "%s[-]%s ", color, reset);
    return n ? sink_ours(to, prefix) : 0;
}

static int print_line(const struct lines *l, const struct line *line)
{
    struct sink *to = line->s == LOG_STDERR ? l->err : l->out;
    int r = to == l->err ? sink_flush(l->out) : sink_flush(l->err); /* keep their order */
    const char *color = to->colors ? session_color(l, line) : NULL;
    if (r == 0)
        r = print_prefix(l, to, line);
    if (r == 0 && color)
        r = sink_ours(to, color);
    if (r == 0)
        r = sink_write(to, line->text, line->n);
    if (r == 0 && color)
        r = sink_ours(to, SGR_RESET);
    return r == 0 ? sink_write(to, "\n", 1) : r;
}

static int keep(struct lines *l, const struct line *line)
{
    struct kept_line *k = malloc(sizeof(*k) + line->n);
    if (!k)
        return -ENOMEM;
    *k = (struct kept_line){.s = line->s, .id = line->id, .n = line->n};
    (void)snprintf(k->t, sizeof(k->t), "%s", line->t);
    if (line->n)
        memcpy(k->text, line->text, line->n);
    return ring_push(&l->kept, k);
}

/* REG_STARTEND allows a NUL among the bytes. They also end in one, for checkers that do not know
 * REG_STARTEND. */
static bool matches(const struct lines *l, const struct line *line)
{
    if (!l->grep)
        return true;
    size_t n = line->n;
    if (n && line->text[n - 1] == '\r') /* of a terminal's line end */
        n--;
    regmatch_t span = {.rm_so = 0, .rm_eo = (regoff_t)n};
    return regexec(l->grep, n ? (const char *)line->text : "", 1, &span, REG_STARTEND) == 0;
}

static int line_done(struct lines *l, const struct line *line)
{
    if (!matches(l, line))
        return 0;
    return l->keeping ? keep(l, line) : print_line(l, line);
}

/* --- pieces --- */

static int close_line(struct lines *l, struct open_line *o)
{
    uint8_t *end = buf_reserve(&o->text, 1);
    if (!end)
        return -ENOMEM;
    *end = '\0'; /* as the bytes of an entry: see matches() */
    struct line line = {
        .s = o->s, .id = o->id, .t = o->t, .text = buf_head(&o->text), .n = buf_len(&o->text)};
    int r = line_done(l, &line);
    buf_reset(&o->text);
    return r;
}

static struct open_line *find_open(struct lines *l, const struct log_entry *e)
{
    for (size_t i = 0; i < LINES_OPEN_MAX; i++) {
        struct open_line *o = &l->open[i];
        if (buf_len(&o->text) && o->s == e->s && o->id == e->id)
            return o;
    }
    return NULL;
}

static int begin_line(struct lines *l, const struct log_entry *e, struct open_line **ret)
{
    struct open_line *o = NULL;
    for (size_t i = 0; i < LINES_OPEN_MAX && !o; i++)
        if (buf_len(&l->open[i].text) == 0)
            o = &l->open[i];
    int r = 0;
    if (!o) {
        o = &l->open[l->next_open++ % LINES_OPEN_MAX];
        r = close_line(l, o);
    }
    o->s = e->s;
    o->id = e->id;
    memcpy(o->t, e->t, sizeof(o->t));
    *ret = o;
    return r;
}

/* A piece without the end of its line. */
static int hold_piece(struct lines *l, const struct log_entry *e, struct open_line *o,
                      const uint8_t *p, size_t n)
{
    while (n) {
        int r = o ? 0 : begin_line(l, e, &o);
        size_t room = LOG_CHUNK_MAX - buf_len(&o->text);
        size_t take = MIN(n, room);
        if (r == 0)
            r = buf_append(&o->text, p, take);
        if (r < 0)
            return r;
        p += take;
        n -= take;
        if (take == room) {
            r = close_line(l, o);
            o = NULL;
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int lines_add(struct lines *l, const struct log_entry *e)
{
    const uint8_t *p = e->data, *end = p + e->len;
    struct open_line *o = find_open(l, e);
    while (p < end) {
        const uint8_t *nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl)
            break;
        int r;
        if (o) {
            r = hold_piece(l, e, o, p, (size_t)(nl - p));
            o = find_open(l, e);
            if (r == 0 && o)
                r = close_line(l, o);
            o = NULL;
        } else {
            struct line line = {
                .s = e->s, .id = e->id, .t = e->t, .text = p, .n = (size_t)(nl - p)};
            r = line_done(l, &line);
        }
        if (r < 0)
            return r;
        p = nl + 1;
    }
    if (e->s == LOG_SYSTEM && p < end) { /* one entry, one line */
        struct line line = {.s = e->s, .id = e->id, .t = e->t, .text = p, .n = (size_t)(end - p)};
        return line_done(l, &line);
    }
    return p < end ? hold_piece(l, e, o, p, (size_t)(end - p)) : 0;
}

int lines_show_kept(struct lines *l)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < l->kept.n; i++) {
        const struct kept_line *k = ring_at(&l->kept, i);
        struct line line = {.s = k->s, .id = k->id, .t = k->t, .text = k->text, .n = k->n};
        r = print_line(l, &line);
    }
    ring_free(&l->kept);
    l->keeping = false;
    return r;
}

int lines_end(struct lines *l)
{
    int r = 0;
    for (size_t i = 0; i < LINES_OPEN_MAX && r == 0; i++)
        if (buf_len(&l->open[i].text))
            r = close_line(l, &l->open[i]);
    return r;
}
