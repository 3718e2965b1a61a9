#include "cli/core/noun.h"

#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "util/cleanup.h"
#include "util/term.h"
#include "util/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- options --------------------------------------------------------------------------------- */

const struct opt quiet_opts[] = {QUIET_OPTION, {0}};
const struct opt list_opts[] = {NAMES_ONLY_OPTION, FORMAT_OPTION, {0}};
const struct opt inspect_opts[] = {FORMAT_OPTION, {0}};

bool wants_json(const struct args *a)
{
    return args_has(a, "format"); /* json is the only one */
}

/* --- tables ---------------------------------------------------------------------------------- */

static size_t styled_column;

static const char *cell_style(size_t row, size_t column, const char *cell)
{
    if (row == 0)
        return SGR_BOLD;
    if (!styled_column || column != styled_column)
        return NULL;
    if (strcmp(cell, "running") == 0)
        return SGR_GREEN;
    if (strcmp(cell, "crashed") == 0)
        return SGR_RED;
    return strcmp(cell, "stopped") == 0 ? SGR_DIM : SGR_YELLOW;
}

int show_table(const struct table *t, size_t status_column)
{
    AUTO_BUF struct buf out = {.limit = SIZE_MAX / 2};
    styled_column = status_column;
    if (table_print(t, &out, term_colors(STDOUT_FILENO) ? cell_style : NULL) == 0)
        return ui_print(&out);
    struct err e = {0};
    (void)err_oom(&e);
    return ui_fail(&e);
}

/* --- text ------------------------------------------------------------------------------------ */

void text_line(struct buf *b, const char *label, const char *value)
{
    AUTO_FREE char *safe = value && *value ? strdup(value) : NULL;
    if (!safe)
        return;
    utf8_defuse(safe);
    (void)buf_printf(b, "%-16s%s\n", label, safe);
}

void text_section(struct buf *b, const char *title, char *const *list)
{
    if (list && *list)
        (void)buf_printf(b, "\n%s\n", title);
    for (; list && *list; list++) {
        AUTO_FREE char *safe = strdup(*list);
        if (safe)
            utf8_defuse(safe);
        (void)buf_printf(b, "  %s\n", safe ? safe : "");
    }
}

void text_words(struct buf *b, const char *label, char *const *list)
{
    AUTO_BUF struct buf text = {.limit = SIZE_MAX / 2};
    for (char *const *v = list; v && *v; v++)
        (void)buf_printf(&text, "%s%s", v == list ? "" : " ", *v);
    if (buf_append(&text, "", 1) == 0)
        text_line(b, label, (char *)buf_head(&text));
}

/* --- JSON ------------------------------------------------------------------------------------ */

json_t *json_time(uint64_t realtime_ns)
{
    char text[TIME_TEXT_MAX];
    if (realtime_ns == 0)
        return json_null();
    time_rfc3339(realtime_ns, text);
    return json_string(text);
}

json_t *json_number(double v)
{
    return v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

json_t *json_text(const char *s)
{
    return s && *s ? json_string(s) : json_null();
}

/* --- list and inspect ------------------------------------------------------------------------ */

static int list_names(const struct noun *n, const struct items *l)
{
    AUTO_BUF struct buf out = {.limit = SIZE_MAX / 2};
    for (size_t i = 0; i < l->n; i++) {
        if (n->kind)
            (void)buf_printf(&out, "%s", (const char *)l->v + i * n->kind->size);
        else
            n->name(l, i, &out);
        (void)buf_printf(&out, "\n");
    }
    return ui_print(&out);
}

static int list_json(const struct noun *n, const struct items *l, bool one)
{
    if (one)
        return ui_print_json(n->json(l, 0));
    json_t *all = json_array();
    for (size_t i = 0; i < l->n; i++)
        (void)json_array_append_new(all, n->json(l, i));
    return ui_print_json(all);
}

static int list_table(const struct noun *n, const struct items *l)
{
    AUTO_TABLE struct table t;
    size_t columns = 0;
    while (n->headers[columns])
        columns++;
    table_init(&t, columns, n->headers);
    for (size_t i = 0; i < columns; i++)
        t.max[i] = n->widths[i];
    for (size_t i = 0; i < l->n; i++) {
        n->row(l, i, &t);
        assert(t.failed || t.n == columns * (i + 2)); /* with the header */
    }
    return show_table(&t, n->status_column);
}

static int list_show(const struct noun *n, const struct items *l, bool one)
{
    if (args_has(l->args, "quiet"))
        return list_names(n, l);
    if (wants_json(l->args))
        return list_json(n, l, one);
    if (l->n)
        return list_table(n, l);
    if (n->none_on_stdout)
        return ui_print_line(n->none);
    ui_note(n->none);
    return EXIT_OK;
}

/* Loads the one with that name, or all. */
static int load_items(const struct noun *n, struct items *l, const char *name, struct err *e)
{
    if (!n->kind)
        return name ? n->open(l, name, e) : n->load(l, e);
    if (!name)
        return named_list(l->store, n->kind, &l->v, &l->n, e);
    l->n = 1;
    l->v = calloc(1, n->kind->size);
    return l->v ? named_open(l->store, n->kind, name, l->v, e) : err_oom(e);
}

static void free_items(const struct noun *n, struct items *l)
{
    if (n->free)
        n->free(l);
    else
        free(l->v);
}

int noun_list(const struct noun *n, const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct items l = {.store = &s, .args = a};
    struct err e = {0};
    bool one = a->n_pos > 0 && !n->of;
    int r = store_open(&s, &e);
    if (r == 0)
        r = load_items(n, &l, one ? a->pos[0] : NULL, &e);
    int code = r < 0 ? ui_fail(&e) : list_show(n, &l, one);
    free_items(n, &l);
    return code;
}

int noun_inspect(const struct noun *n, const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_BUF struct buf text = {.limit = SIZE_MAX / 2};
    struct items l = {.store = &s, .args = a};
    struct err e = {0};
    assert(a->n_pos == 1);
    int code, r = store_open(&s, &e);
    if (r == 0)
        r = load_items(n, &l, a->pos[0], &e);
    if (r < 0) {
        code = ui_fail(&e);
    } else if (wants_json(a)) {
        code = ui_print_json(n->json(&l, 0));
    } else {
        n->text(&l, &text);
        code = ui_print(&text);
    }
    free_items(n, &l);
    return code;
}
