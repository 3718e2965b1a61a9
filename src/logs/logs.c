#include "logs/logs.h"

#include "logs/files.h"
#include "logs/lines.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 2, FOLLOW_MS = 100 };

struct logs {
    const struct logs_options *o;
    struct log_stream stream[STREAMS]; /* exec.log, system.log; only those that are needed */
    bool has[STREAMS];                 /* stream[i].entry is its next one */
    int n_streams;

    struct sink out, err;
    regex_t grep;
    bool has_grep;
    bool by_line;
    struct lines lines;

    /* the first entry of --tail is shown from its skip'th byte on */
    int skip_stream; /* -1 = none */
    struct log_place skip_at;
    size_t skip;
};

int logs_parse_sources(const char *list, unsigned *ret)
{
    unsigned bits = 0;
    while (*list) {
        size_t n = strcspn(list, ",");
        unsigned bit = 0;
        for (int s = LOG_STDOUT; s <= LOG_SYSTEM; s++) {
            const char *name = log_source_name((enum log_source)s);
            if (strlen(name) == n && strncmp(list, name, n) == 0)
                bit = 1U << s;
        }
        if (n == 3 && strncmp(list, "all", n) == 0)
            bit = LOGS_ALL_SOURCES;
        if (!bit)
            return -EINVAL;
        bits |= bit;
        list += n;
        if (*list == ',' && !*++list)
            return -EINVAL;
    }
    *ret = bits;
    return bits ? 0 : -EINVAL;
}

/* --- one entry --- */

static bool is_wanted(const struct logs *l, const struct log_entry *e)
{
    const struct logs_options *o = l->o;
    return (o->sources & 1U << e->s) && e->t_ns >= o->since_ns &&
           (!o->until_ns || e->t_ns <= o->until_ns);
}

static bool entry_matches(const struct logs *l, const struct log_entry *e)
{
    regmatch_t span = {.rm_so = 0, .rm_eo = (regoff_t)e->len};
    return !l->has_grep || regexec(&l->grep, (const char *)e->data, 1, &span, REG_STARTEND) == 0;
}

static int show_json(struct logs *l, const struct log_entry *e)
{
    if (!entry_matches(l, e))
        return 0;
    AUTO_FREE char *text = log_entry_json(e, l->out.safe);
    if (!text)
        return -ENOMEM;
    int r = sink_ours(&l->out, text);
    return r < 0 ? r : sink_ours(&l->out, "\n");
}

static int show_bytes(struct logs *l, const struct log_entry *e)
{
    struct sink *to = e->s == LOG_STDERR ? &l->err : &l->out;
    int r = sink_flush(to == &l->err ? &l->out : &l->err); /* keep their order */
    if (r == 0)
        r = sink_write(to, e->data, e->len);
    if (r == 0 && e->s == LOG_SYSTEM)
        r = sink_write(to, "\n", 1);
    return r;
}

static int show(struct logs *l, int stream)
{
    struct log_stream *s = &l->stream[stream];
    struct log_entry *e = &s->entry;
    if (!is_wanted(l, e))
        return 0;
    if (stream == l->skip_stream && s->entry_at.file == l->skip_at.file &&
        s->entry_at.off == l->skip_at.off) {
        e->data += l->skip;
        e->len -= l->skip;
        l->skip_stream = -1;
    }
    if (l->o->json)
        return show_json(l, e);
    return l->by_line ? lines_add(&l->lines, e) : show_bytes(l, e);
}

/* Shows everything available by now, in chronological order. */
static int show_available(struct logs *l)
{
    for (;;) {
        int first = -1;
        for (int i = 0; i < l->n_streams; i++) {
            if (!l->has[i]) {
                int r = log_stream_next(&l->stream[i]);
                if (r < 0)
                    return r;
                l->has[i] = r == 1;
            }
            if (l->has[i] && (first < 0 || l->stream[i].entry.t_ns < l->stream[first].entry.t_ns))
                first = i;
        }
        if (first < 0)
            return 0;
        int r = show(l, first);
        l->has[first] = false;
        if (r < 0)
            return r;
    }
}

/* --- tail --- */

static size_t count_lines(const struct log_entry *e)
{
    size_t n = 0;
    const uint8_t *p = e->data, *end = p + e->len;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p)))) {
        p++;
        n++;
    }
    return e->s == LOG_SYSTEM ? 1 : n;
}

/* Offset behind the nth newline. */
static size_t behind_newline(const struct log_entry *e, size_t nth)
{
    const uint8_t *p = e->data, *end = p + e->len;
    while (nth-- && p < end && (p = memchr(p, '\n', (size_t)(end - p))))
        p++;
    return p ? (size_t)(p - e->data) : e->len;
}

/* The stream with the newest entry not examined yet; -1 if there is none. */
static int newest(struct logs *l, bool *ended, int *ret)
{
    *ret = -1;
    for (int i = 0; i < l->n_streams; i++) {
        struct log_stream *s = &l->stream[i];
        if (!l->has[i] && !ended[i]) {
            int r = log_stream_prev(s);
            if (r < 0)
                return r;
            l->has[i] = r == 1;
            ended[i] = r == 0 || s->entry.t_ns < l->o->since_ns;
            l->has[i] &= !ended[i];
        }
        if (l->has[i] && (*ret < 0 || s->entry.t_ns >= l->stream[*ret].entry.t_ns))
            *ret = i;
    }
    return 0;
}

/* How far back --tail goes, entry by entry. */
struct tail {
    uint64_t count; /* lines passed; entries, for JSON */
    bool any;       /* passed bytes at all: only the last ones of all may lack a newline */
    bool taken[STREAMS];
    struct log_place from[STREAMS];
};

/* Takes stream i's entry into the tail; true when the tail is complete. A line begins after the
 * newline of the previous line, so that one is needed, too. */
static bool tail_takes(struct logs *l, struct tail *t, int i)
{
    struct log_stream *s = &l->stream[i];
    const struct log_entry *e = &s->entry;
    uint64_t most = l->o->tail;
    size_t lines = 1;
    if (l->o->json) {
        if (t->count == most)
            return true;
        if (!entry_matches(l, e))
            return false;
    } else {
        if (!t->any && e->s != LOG_SYSTEM && e->len && e->data[e->len - 1] != '\n')
            t->count++;
        t->any = t->any || e->len;
        lines = count_lines(e);
        if (t->count + lines > most && e->s == LOG_SYSTEM)
            return true;
    }
    t->taken[i] = true;
    t->from[i] = s->entry_at;
    t->count += lines;
    if (l->o->json || t->count <= most)
        return false;
    l->skip_stream = i;
    l->skip_at = s->entry_at;
    l->skip = behind_newline(e, (size_t)(t->count - most));
    return true;
}

/* Counts backward, and leaves every stream where the tail begins. */
static int seek_tail(struct logs *l)
{
    struct tail t = {0};
    bool ended[STREAMS] = {false};
    int i, r;
    while ((r = newest(l, ended, &i)) == 0 && i >= 0) {
        l->has[i] = false;
        if (is_wanted(l, &l->stream[i].entry) && tail_takes(l, &t, i))
            break;
    }
    for (i = 0; i < l->n_streams; i++) {
        struct log_stream *s = &l->stream[i];
        log_stream_drop(s);
        log_stream_seek(s, t.taken[i] ? t.from[i] : s->end);
        l->has[i] = false;
    }
    return r;
}

/* --- the whole --- */

static bool is_past_until(const struct logs *l)
{
    return l->o->until_ns && realtime_ns() > l->o->until_ns;
}

static int flush(struct logs *l)
{
    int r = sink_flush(&l->out);
    return r < 0 ? r : sink_flush(&l->err);
}

static int follow(struct logs *l)
{
    for (;;) {
        int r = flush(l);
        if (r < 0)
            return r;
        /* Checked before reading, so that what was written before the end is still seen. */
        bool more = l->o->alive && l->o->alive(l->o->arg) && !is_past_until(l);
        for (int i = 0; i < l->n_streams && r == 0; i++)
            r = log_stream_refresh(&l->stream[i]);
        if (r == 0)
            r = show_available(l);
        if (r < 0 || !more)
            return r;
        sleep_ms(FOLLOW_MS);
    }
}

static int run(struct logs *l)
{
    const struct logs_options *o = l->o;
    int r = 0;
    l->lines.keeping = o->has_tail && l->has_grep && l->by_line;
    l->lines.kept.max = (size_t)o->tail;
    if (o->has_tail && !l->lines.keeping)
        r = seek_tail(l);
    if (r == 0)
        r = show_available(l);
    if (r == 0 && l->lines.keeping && !o->follow)
        r = lines_end(&l->lines);
    if (r == 0 && l->lines.keeping)
        r = lines_show_kept(&l->lines);
    if (r == 0 && o->follow)
        r = follow(l);
    return r == 0 ? lines_end(&l->lines) : r;
}

static int open_streams(struct logs *l, int dirfd)
{
    static const struct {
        const char *name;
        unsigned sources;
    } logs[STREAMS] = {{LOG_EXEC_NAME, LOGS_DEFAULT_SOURCES}, {LOG_SYSTEM_NAME, 1U << LOG_SYSTEM}};
    for (size_t i = 0; i < STREAMS; i++) {
        if (!(l->o->sources & logs[i].sources))
            continue;
        int r = log_stream_open(&l->stream[l->n_streams], dirfd, logs[i].name, l->o->since_ns);
        if (r < 0)
            return r;
        l->n_streams++;
    }
    return 0;
}

static int compile_grep(struct logs *l, struct err *e)
{
    char why[256];
    if (!l->o->grep)
        return 0;
    int r = regcomp(&l->grep, l->o->grep, REG_EXTENDED);
    if (r) {
        (void)regerror(r, &l->grep, why, sizeof(why));
        return err_set(e, EINVAL, "invalid regular expression '%s': %s", l->o->grep, why);
    }
    l->has_grep = true;
    return 0;
}

int logs_show(int logs_dirfd, const struct logs_options *o, struct err *e)
{
    struct logs l = {.o = o, .skip_stream = -1};
    int r = compile_grep(&l, e);
    if (r < 0)
        return r;
    l.by_line = !o->json && (o->timestamps || o->show_id || o->color_sessions || o->grep);
    sink_open(&l.out, STDOUT_FILENO, o->color, o->escape);
    sink_open(&l.err, STDERR_FILENO, o->color, o->escape);
    lines_init(&l.lines, &l.out, &l.err);
    l.lines.grep = l.has_grep ? &l.grep : NULL;
    l.lines.timestamps = o->timestamps;
    l.lines.show_id = o->show_id;
    l.lines.color_sessions = o->color_sessions;

    r = open_streams(&l, logs_dirfd);
    if (r == 0)
        r = run(&l);
    int r_out = sink_close(&l.out), r_err = sink_close(&l.err);
    r = r < 0 ? r : r_out < 0 ? r_out : r_err;
    for (int i = 0; i < l.n_streams; i++)
        log_stream_close(&l.stream[i]);
    lines_free(&l.lines);
    if (l.has_grep)
        regfree(&l.grep);
    if (r == -EPIPE)
        return r;
    return r < 0 ? err_sys(e, -r, "cannot show the logs") : 0;
}
