#include "cli/select.h"

#include "cli/ui.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    const struct sandbox *x = a, *y = b;
    return strcmp(x->spec.name, y->spec.name);
}

static int add_labelled(const struct store *s, const struct strlist *labels, struct strlist *ret,
                        size_t *matched, struct err *e)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    int r = store_list(s, &list, &n, e);
    if (r < 0)
        return r;
    if (n)
        qsort(list, n, sizeof(*list), by_name);
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (!spec_matches_labels(&list[i].spec, labels))
            continue;
        ++*matched;
        if (!strlist_has(ret, list[i].spec.name))
            r = strlist_add(ret, list[i].spec.name);
    }
    sandbox_list_free(list, n);
    return r < 0 ? err_oom(e) : 0;
}

int select_names(const struct store *s, const struct args *a, struct strlist *ret, struct err *e)
{
    for (size_t i = 0; i < a->n_pos; i++)
        if (!strlist_has(ret, a->pos[i]) && strlist_add(ret, a->pos[i]) < 0)
            return err_oom(e);
    struct strlist labels = {0};
    int r = args_list(a, "label", &labels);
    size_t matched = 0;
    if (r == 0 && labels.n) {
        r = add_labelled(s, &labels, ret, &matched, e);
        if (r == 0 && matched == 0)
            ui_warn("no sandboxes matched the given labels");
    }
    strlist_free(&labels);
    return r;
}

static int nothing_selected(const struct args *a)
{
    struct err e = {0};
    char usage[256];
    cmd_usage(a->cmd, usage, sizeof(usage));
    err_set(&e, EINVAL, "the following required arguments were not provided: <NAMES>...");
    err_hint(&e, "name sandboxes, or select them with --label KEY=VALUE");
    err_hint(&e, "usage: %s", usage);
    return ui_usage(&e);
}

int for_each_selected(const struct args *a, each_fn fn)
{
    if (a->n_pos == 0 && !args_has(a, "label"))
        return nothing_selected(a);
    ui_set_quiet(args_has(a, "quiet"));
    struct store s;
    struct err e = {0};
    struct strlist names = {0};
    int code = EXIT_OK;
    int r = store_open(&s, &e);
    if (r == 0)
        r = select_names(&s, a, &names, &e);
    if (r < 0)
        code = ui_fail(&e);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        struct err one = {0};
        if (fn(&s, a, names.v[i], &one) == 0)
            continue;
        code = EXIT_FAILED;
        if (one.msg[0])
            ui_error(&one);
    }
    strlist_free(&names);
    store_close(&s);
    return code;
}

int for_each_named(const struct args *a, const char *did, named_fn fn)
{
    struct store s;
    struct err e = {0};
    int code = EXIT_OK;
    ui_set_quiet(args_has(a, "quiet"));
    if (store_open(&s, &e) < 0)
        return ui_fail(&e);
    for (size_t i = 0; i < a->n_pos; i++) {
        err_clear(&e);
        if (fn(&s, a->pos[i], &e) < 0)
            code = ui_fail(&e);
        else
            ui_success(did, a->pos[i]);
    }
    store_close(&s);
    return code;
}
