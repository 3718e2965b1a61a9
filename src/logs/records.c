#include "logs/records.h"

#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOLLOW_MS = 100, OUT_MAX = 1 << 20, FLUSH_AT = 64 * 1024 };

/* --- sources --- */

static void source_free(struct record_source *s)
{
    if (!s)
        return;
    log_stream_close(&s->stream);
    close_fd(&s->dirfd);
    free(s->label);
    free(s);
}

int records_add(struct records *r, int dirfd, const char *name, const char *label)
{
    AUTO_CLOSE int dir = dirfd;
    struct record_source *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->dirfd = -1;
    s->label = label ? strdup(label) : NULL;
    int k = label && !s->label ? -ENOMEM : log_stream_open(&s->stream, dir, name, r->since_ns);
    s->stream.parse = log_record_parse;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): it is an array of pointers */
    struct record_source **grown = k < 0 ? NULL : reallocarray(r->src, r->n + 1, sizeof(*grown));
    if (!grown) {
        source_free(s);
        return k < 0 ? k : -ENOMEM;
    }
    s->dirfd = steal_fd(&dir);
    r->src = grown;
    r->src[r->n++] = s;
    return 0;
}

static void drop_source(struct records *r, size_t i)
{
    source_free(r->src[i]);
    r->src[i] = r->src[--r->n];
}

/* --- lines --- */

int record_json(json_t *j, bool ascii, struct buf *out)
{
    size_t flags = JSON_COMPACT | JSON_SORT_KEYS | (ascii ? JSON_ENSURE_ASCII : 0);
    AUTO_FREE char *text = j ? json_dumps(j, flags) : NULL;
    json_decref(j);
    return text ? buf_printf(out, "%s\n", text) : -ENOMEM;
}

static int flush(struct records *r)
{
    int k = buf_len(&r->out) ? write_all(STDOUT_FILENO, buf_head(&r->out), buf_len(&r->out)) : 0;
    buf_reset(&r->out);
    return k;
}

/* Takes what was rendered out of `out`; NULL when memory is short. */
static char *take_rendered(struct records *r)
{
    char *text = strndup((const char *)buf_head(&r->out), buf_len(&r->out));
    buf_reset(&r->out);
    return text;
}

static int show_kept(struct records *r)
{
    int k = 0;
    for (size_t i = 0; k == 0 && i < r->kept.n; i++) {
        const char *line = ring_at(&r->kept, i);
        k = buf_append(&r->out, line, strlen(line));
        if (k == 0 && buf_len(&r->out) >= FLUSH_AT)
            k = flush(r);
    }
    ring_free(&r->kept);
    r->keeping = false;
    return k;
}

/* Keeps what was rendered, or leaves it in `out` until that is full. */
static int pass_on(struct records *r)
{
    if (r->keeping) {
        char *line = take_rendered(r);
        return line ? ring_push(&r->kept, line) : -ENOMEM;
    }
    return buf_len(&r->out) >= FLUSH_AT ? flush(r) : 0;
}

/* The next line, as it would be shown, into `out` (1), or not (0). */
static int render(struct records *r, struct record_source *s)
{
    if (s->stream.entry.t_ns < r->since_ns)
        return 0;
    int k = r->render(r->ctx, s, &s->stream.entry, &r->out);
    if (k > 0)
        s->last_ns = MAX(s->last_ns, s->stream.entry.t_ns);
    return k;
}

static int show(struct records *r, struct record_source *s)
{
    int k = render(r, s);
    return k <= 0 ? k : pass_on(r);
}

/* --- sources that are not in order --- */

static int by_time(const void *a, const void *b)
{
    const struct record_line *x = a, *y = b;
    if (x->t_ns != y->t_ns)
        return x->t_ns < y->t_ns ? -1 : 1;
    return x->nth < y->nth ? -1 : x->nth > y->nth;
}

static int add_early(struct records *r, uint64_t t_ns)
{
    if (ARRAY_GROW(r->early, r->n_early, r->cap_early, 256) < 0)
        return -ENOMEM;
    char *text = take_rendered(r);
    if (!text)
        return -ENOMEM;
    r->early[r->n_early] = (struct record_line){t_ns, r->n_early, text};
    r->n_early++;
    return 0;
}

static int read_unordered(struct records *r)
{
    int k = 0;
    for (size_t i = 0; i < r->n; i++) {
        struct record_source *s = r->src[i];
        while (s->unordered && (k = log_stream_next(&s->stream)) == 1)
            if ((k = render(r, s)) < 0 || (k > 0 && (k = add_early(r, s->stream.entry.t_ns)) < 0))
                return k;
        if (k < 0)
            return k;
    }
    if (r->n_early)
        qsort(r->early, r->n_early, sizeof(*r->early), by_time);
    return 0;
}

static int show_early(struct records *r)
{
    const struct record_line *l = &r->early[r->at_early++];
    int k = buf_append(&r->out, l->text, strlen(l->text));
    return k < 0 ? k : pass_on(r);
}

/* Shows everything available by now, in chronological order. */
static int show_available(struct records *r)
{
    for (;;) {
        struct record_source *first = NULL;
        for (size_t i = 0; i < r->n; i++) {
            struct record_source *s = r->src[i];
            int k = s->has ? 1 : log_stream_next(&s->stream);
            if (k < 0)
                return k;
            s->has = k == 1;
            if (s->has && (!first || s->stream.entry.t_ns < first->stream.entry.t_ns))
                first = s;
        }
        int k;
        if (r->at_early < r->n_early &&
            (!first || r->early[r->at_early].t_ns <= first->stream.entry.t_ns)) {
            k = show_early(r);
        } else if (first) {
            k = show(r, first);
            first->has = false;
        } else {
            return 0;
        }
        if (k < 0)
            return k;
    }
}

static int follow(struct records *r)
{
    for (;;) {
        int k = flush(r);
        if (k < 0)
            return k;
        /* Checked before reading, so that what was written before the end is still seen. */
        bool more = r->more && r->more(r->ctx, r);
        for (size_t i = 0; i < r->n && k == 0; i++)
            k = log_stream_refresh(&r->src[i]->stream);
        if (k == 0)
            k = show_available(r);
        if (k < 0 || !more)
            return k;
        for (size_t i = r->n; i-- > 0;)
            if (r->src[i]->gone)
                drop_source(r, i);
        sleep_ms(FOLLOW_MS);
    }
}

int records_show(struct records *r)
{
    buf_init(&r->out, OUT_MAX);
    r->keeping = r->has_tail;
    r->kept.max = (size_t)r->tail;
    int k = read_unordered(r);
    if (k == 0)
        k = show_available(r);
    if (k == 0 && r->keeping)
        k = show_kept(r);
    if (k == 0 && r->follow)
        k = follow(r);
    int flushed = flush(r);
    return k < 0 ? k : flushed;
}

void records_free(struct records *r)
{
    while (r->n)
        drop_source(r, r->n - 1);
    free(r->src);
    r->src = NULL;
    for (size_t i = 0; i < r->n_early; i++)
        free(r->early[i].text);
    free(r->early);
    r->early = NULL;
    r->n_early = 0;
    ring_free(&r->kept);
    buf_free(&r->out);
}
