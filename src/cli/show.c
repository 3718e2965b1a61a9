#include "cli/show.h"

#include "cli/ui.h"
#include "store/ports.h"
#include "util/cleanup.h"
#include "util/term.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool wants_json(const struct args *a)
{
    return args_has(a, "format"); /* json is the only one */
}

int show_one(const char *name, struct sandbox *ret)
{
    struct store s;
    struct err e = {0};
    int r = store_open(&s, &e);
    if (r == 0)
        r = sandbox_open(&s, name, ret, &e);
    store_close(&s);
    return r < 0 ? ui_fail(&e) : 0;
}

int show_list(const struct args *a, keep_fn keep, order_fn order, struct sandbox **ret, size_t *n)
{
    struct store s;
    struct err e = {0};
    struct strlist labels = {0};
    struct sandbox *list = NULL;
    size_t all = 0, kept = 0;
    int r = store_open(&s, &e);
    if (r == 0 && args_list(a, "label", &labels) < 0)
        r = err_oom(&e);
    if (r == 0)
        r = store_list(&s, &list, &all, &e);
    for (size_t i = 0; r == 0 && i < all; i++) {
        if (keep(&list[i], a) && spec_matches_labels(&list[i].spec, &labels)) {
            struct sandbox sb = list[i];
            if (i != kept)
                list[i] = list[kept];
            list[kept++] = sb;
        }
    }
    for (size_t i = kept; r == 0 && i < all; i++)
        sandbox_close(&list[i]);
    if (kept)
        qsort(list, kept, sizeof(*list), order);
    strlist_free(&labels);
    store_close(&s);
    *ret = list;
    *n = kept;
    return r < 0 ? ui_fail(&e) : EXIT_OK;
}

size_t show_ports(const struct sandbox *sb, struct spec_port **ret)
{
    struct store s;
    size_t n = 0;
    *ret = NULL;
    if (store_open(&s, NULL) == 0)
        (void)sandbox_ports(&s, sb, ret, &n);
    store_close(&s);
    return n;
}

int show_names(const struct sandbox *list, size_t n)
{
    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    for (size_t i = 0; i < n; i++)
        (void)buf_printf(&out, "%s\n", list[i].spec.name);
    int code = ui_print(&out);
    buf_free(&out);
    return code;
}

static size_t styled_column;

static const char *style(size_t row, size_t column, const char *cell)
{
    if (row == 0)
        return SGR_BOLD;
    if (column != styled_column)
        return NULL;
    if (strcmp(cell, "running") == 0)
        return SGR_GREEN;
    if (strcmp(cell, "crashed") == 0)
        return SGR_RED;
    return strcmp(cell, "stopped") == 0 ? SGR_DIM : SGR_YELLOW;
}

int show_table(const struct table *t, size_t status_column)
{
    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    styled_column = status_column;
    int r = table_print(t, &out, term_colors(STDOUT_FILENO) ? style : NULL);
    int code;
    if (r < 0) {
        struct err e = {0};
        err_set(&e, -r, "out of memory");
        code = ui_fail(&e);
    } else {
        code = ui_print(&out);
    }
    buf_free(&out);
    return code;
}

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
