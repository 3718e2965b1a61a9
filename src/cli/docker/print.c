#include "cli/docker/docker.h"

#include "cli/core/cmd.h"
#include "cli/core/template.h"
#include "cli/core/ui.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTPUT_MAX = 64 << 20, CELL_MIN = 10, CELL_GAP = 3 };
int docker_show_fail(const struct err *e)
{
    (void)fprintf(stderr, "%s\n", e->msg);
    return EXIT_FAILED;
}

/* --- output ---------------------------------------------------------------------------------- */

/* Images and users choose some of these texts: on a terminal they must not be commands. */
static int print_text(struct buf *b)
{
    struct err e = {0};
    if (!isatty(STDOUT_FILENO))
        return ui_print(b);
    if (!buf_text(b)) {
        (void)err_oom(&e);
        return docker_show_fail(&e);
    }
    char *text = (char *)buf_head(b);
    utf8_defuse_lines(text);
    b->tail = b->head + strlen(text); /* it never grows */
    return ui_print(b);
}

/* "\t" and "\n" may be written as escape sequences. */
static char *unescape_format(const char *format)
{
    char *copy = strdup(format), *to = copy;
    for (const char *p = format; copy && *p; p++) {
        bool tab = p[0] == '\\' && p[1] == 't', newline = p[0] == '\\' && p[1] == 'n';
        *to++ = tab ? '\t' : newline ? '\n' : *p;
        p += tab || newline;
    }
    if (copy)
        *to = '\0';
    return copy;
}

/* Each value on a line, below the titles if there are any. */
static int render(const char *format, json_t *titles, json_t *list, struct buf *out, struct err *e)
{
    AUTO_FREE char *text = unescape_format(format);
    json_t *v;
    size_t i;
    if (!list || !text)
        return err_oom(e);
    int r = titles ? template_render(text, titles, out, e) : 0;
    if (r == 0 && titles && buf_append(out, "\n", 1) < 0)
        r = err_oom(e);
    json_array_foreach(list, i, v)
    {
        if (r == 0)
            r = template_render(text, v, out, e);
        if (r == 0 && buf_append(out, "\n", 1) < 0)
            r = err_oom(e);
    }
    return r;
}

int docker_print(const char *format, json_t *values)
{
    AUTO_JSON json_t *list = values;
    AUTO_BUF struct buf b = {.limit = OUTPUT_MAX};
    struct err e = {0};
    int r = render(strcmp(format, "json") == 0 ? "{{json .}}" : format, NULL, list, &b, &e);
    return r < 0 ? docker_show_fail(&e) : print_text(&b);
}

/* Width of n bytes of UTF-8. */
static size_t columns(const char *p, size_t n)
{
    size_t wide = 0;
    for (size_t i = 0; i < n; i++)
        wide += ((unsigned char)p[i] & 0xc0) != 0x80;
    return wide;
}

/* Lines of cells separated by tabs: columns as wide as Docker makes them. */
static int print_columns(const char *text)
{
    AUTO_BUF struct buf b = {.limit = OUTPUT_MAX};
    size_t width[32] = {0};
    for (int pass = 0; pass < 2; pass++) {
        size_t column = 0;
        for (const char *p = text; *p;) {
            size_t n = strcspn(p, "\t\n"), wide = columns(p, n);
            bool last = p[n] != '\t';
            size_t c = MIN(column, ARRAY_LEN(width) - 1);
            if (pass == 0 && !last)
                width[c] = MAX(width[c], MAX(wide + CELL_GAP, (size_t)CELL_MIN));
            if (pass == 1)
                (void)buf_printf(&b, "%.*s%*s%s", (int)n, p, last ? 0 : (int)(width[c] - wide), "",
                                 last ? "\n" : "");
            column = last ? 0 : column + 1;
            p += n + (p[n] != '\0');
        }
    }
    return print_text(&b);
}

/* `headers` has the columns' titles as field values for the format. */
static int print_table(const char *format, json_t *headers, json_t *rows)
{
    AUTO_JSON json_t *titles = headers;
    AUTO_JSON json_t *list = rows;
    AUTO_BUF struct buf b = {.limit = OUTPUT_MAX};
    struct err e = {0};
    int r = titles ? render(format, titles, list, &b, &e) : err_oom(&e);
    if (r == 0 && buf_append(&b, "", 1) < 0)
        r = err_oom(&e);
    return r < 0 ? docker_show_fail(&e) : print_columns((const char *)buf_head(&b));
}

/* -q, --format TEMPLATE, --format 'table TEMPLATE', --format json; takes both. */
int docker_print_rows(const struct docker_cmd *d, const char *usual, json_t *headers, json_t *rows)
{
    const char *format = docker_get(d, "format");
    bool table = !format || strncmp(format, "table ", 6) == 0 || strcmp(format, "table") == 0;
    if (docker_has(d, "quiet") || !table) {
        json_decref(headers);
        return docker_print(docker_has(d, "quiet") ? "{{.ID}}" : format, rows);
    }
    return print_table(format && format[5] ? format + 6 : usual, headers, rows);
}

/* "5 minutes", in Docker's words. */
void docker_duration(uint64_t ns, char out[48])
{
    uint64_t s = ns / 1000000000, m = s / 60, h = (m + 30) / 60, d = h / 24;
    const struct {
        bool fits;
        uint64_t n;
        const char *unit;
    } steps[] = {{s < 60, s, s == 1 ? "second" : "seconds"},
                 {m < 60, m, "minutes"},
                 {h < 48, h, "hours"},
                 {d < 14, d, "days"},
                 {d < 60, d / 7, "weeks"},
                 {true, d / 30, "months"}};
    size_t i = 0;
    while (!steps[i].fits)
        i++;
    if (s < 1)
        (void)snprintf(out, 48, "Less than a second");
    else if (i > 0 && steps[i].n == 1)
        (void)snprintf(out, 48, i == 1 ? "About a minute" : "About an hour");
    else
        (void)snprintf(out, 48, "%llu %s", (unsigned long long)steps[i].n, steps[i].unit);
}

uint64_t docker_since(uint64_t when_ns)
{
    uint64_t now = realtime_ns();
    return now > when_ns ? now - when_ns : 0;
}

json_t *docker_ago(uint64_t when_ns)
{
    char text[48];
    docker_duration(docker_since(when_ns), text);
    return json_sprintf("%s ago", text);
}

json_t *docker_joined(char *const *list, const char *sep)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    for (size_t i = 0; list && list[i]; i++)
        (void)buf_printf(&b, "%s%s", i ? sep : "", list[i]);
    return json_stringn(buf_len(&b) ? (const char *)buf_head(&b) : "", buf_len(&b));
}
