#include "util/text.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

unsigned edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > TEXT_WORD_MAX || m > TEXT_WORD_MAX)
        return TEXT_FAR;
    unsigned rows[3][TEXT_WORD_MAX + 1];
    unsigned *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++) {
        before[j] = 0;
        last[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= n; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = MIN(d, last[j] + 1);
            d = MIN(d, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = MIN(d, before[j - 2] + 1);
            now[j] = d;
        }
        unsigned *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[m];
}

unsigned word_unlikeness(const char *typed, const char *word)
{
    size_t n = strlen(typed), m = strlen(word);
    if (n >= 3 && strncmp(typed, word, n) == 0)
        return m == n ? 0 : 1;
    unsigned d = edit_distance(typed, word);
    size_t longer = MAX(n, m);
    unsigned limit = longer <= 3 ? 1 : longer <= 6 ? 2 : 3;
    /* Some letters must match: "xy" is not a misspelled "rm". */
    return d <= limit && d < MIN(n, m) ? d : TEXT_FAR;
}

bool utf8_valid(const char *s)
{
    const uint8_t *p = (const uint8_t *)s;
    for (size_t left = strlen(s); left > 0;) {
        uint32_t cp;
        int n = utf8_char(p, left, &cp);
        if (n <= 0)
            return false;
        p += n;
        left -= (size_t)n;
    }
    return true;
}

size_t utf8_width(const char *s)
{
    size_t w = 0;
    for (; *s; s++)
        w += ((unsigned char)*s & 0xc0) != 0x80;
    return w;
}

/* Bytes of the first `chars` characters. */
static size_t utf8_prefix(const char *s, size_t chars)
{
    size_t i = 0;
    for (; s[i]; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80 && chars-- == 0)
            break;
    return i;
}

void table_init(struct table *t, size_t columns, const char *const *headers)
{
    assert(columns > 0 && columns <= TABLE_COLUMNS_MAX);
    *t = (struct table){.columns = columns};
    for (size_t i = 0; i < columns; i++)
        table_add(t, headers[i]);
}

void table_free(struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->cell[i]);
    free(t->cell);
    *t = (struct table){0};
}

void table_add(struct table *t, const char *cell)
{
    if (t->failed)
        return;
    if (t->n % 64 == 0) {
        char **more = reallocarray(t->cell, t->n + 64, sizeof(*more));
        if (!more) {
            t->failed = true;
            return;
        }
        t->cell = more;
    }
    size_t max = t->max[t->n % t->columns];
    char *s;
    if (max > 3 && utf8_width(cell) > max) {
        if (asprintf(&s, "%.*s...", (int)utf8_prefix(cell, max - 3), cell) < 0)
            s = NULL;
    } else {
        s = strdup(cell);
    }
    if (!s) {
        t->failed = true;
        return;
    }
    utf8_defuse(s);
    t->cell[t->n++] = s;
}

void table_add_all(struct table *t, const char *const *cells, size_t n)
{
    for (size_t i = 0; i < n; i++)
        table_add(t, cells[i]);
}

static int print_cell(struct buf *out, const char *cell, size_t pad, const char *style)
{
    bool styled = style && *style;
    return buf_printf(out, "%s%s%s%*s", styled ? style : "", cell, styled ? "\x1b[0m" : "",
                      (int)pad, "");
}

int table_print(const struct table *t, struct buf *out, table_style style)
{
    if (t->failed)
        return -ENOMEM;
    size_t width[TABLE_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < t->n; i++)
        width[i % t->columns] = MAX(width[i % t->columns], utf8_width(t->cell[i]));
    for (size_t i = 0; i < t->n; i++) {
        size_t col = i % t->columns;
        bool last = col == t->columns - 1;
        size_t pad = last ? 0 : width[col] - utf8_width(t->cell[i]) + 4;
        const char *sgr = style ? style(i / t->columns, col, t->cell[i]) : NULL;
        int r = print_cell(out, t->cell[i], pad, sgr);
        if (r == 0 && last)
            r = buf_append(out, "\n", 1);
        if (r < 0)
            return r;
    }
    return 0;
}

void time_rfc3339(uint64_t realtime_ns, char out[TIME_TEXT_MAX])
{
    time_t t = (time_t)(realtime_ns / 1000000000);
    struct tm tm;
    char day[32];
    out[0] = '\0';
    if (gmtime_r(&t, &tm) && strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm))
        (void)snprintf(out, TIME_TEXT_MAX, "%s.%09luZ", day,
                       (unsigned long)(realtime_ns % 1000000000));
}

void time_local(uint64_t realtime_ns, char out[TIME_TEXT_MAX])
{
    time_t t = (time_t)(realtime_ns / 1000000000);
    struct tm tm;
    if (!localtime_r(&t, &tm) || !strftime(out, TIME_TEXT_MAX, "%Y-%m-%d %H:%M:%S", &tm))
        out[0] = '\0';
}
