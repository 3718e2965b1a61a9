#include "cli/core/select.h"

#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"

#include <errno.h>
#include <stdlib.h>

/* labels = NULL: all that run. */
static int add_matching(const struct store *s, const struct strlist *labels, struct strlist *ret,
                        size_t *matched, struct err *e)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    int r = store_list(s, &list, &n, e);
    if (r < 0)
        return r;
    if (n)
        qsort(list, n, sizeof(*list), sandbox_by_name);
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (labels ? !spec_matches_labels(&list[i].spec, labels) : list[i].state.pid == 0)
            continue;
        ++*matched;
        if (!strlist_has(ret, list[i].spec.name))
            r = strlist_add(ret, list[i].spec.name);
    }
    sandbox_list_free(list, n);
    return r < 0 ? err_oom(e) : 0;
}

static int select_names(const struct store *s, const struct args *a, bool all, struct strlist *ret,
                        struct err *e)
{
    AUTO_STRLIST struct strlist labels = {0};
    size_t matched = 0;
    for (size_t i = 0; i < a->n_pos; i++)
        if (!strlist_has(ret, a->pos[i]) && strlist_add(ret, a->pos[i]) < 0)
            return err_oom(e);
    if (args_list(a, "label", &labels) < 0)
        return err_oom(e);
    int r = labels.n ? add_matching(s, &labels, ret, &matched, e) : 0;
    if (r == 0 && labels.n && matched == 0)
        ui_warn("no sandboxes matched the given labels");
    if (r == 0 && all) {
        matched = 0;
        r = add_matching(s, NULL, ret, &matched, e);
        if (r == 0 && matched == 0)
            ui_note("No running sandboxes.");
    }
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

static int act_on(const struct store *s, const struct args *a, const char *name,
                  const struct action *act)
{
    struct spinner spin = {0};
    struct err e = {0};
    if (act->doing)
        spinner_start(&spin, act->doing, name);
    int r = act->fn ? act->fn(s, a, name, &e) : act->plain(s, name, &e);
    spinner_stop(&spin);
    if (r == 0 && act->done)
        ui_success(act->done, name);
    if (r < 0 && e.msg[0])
        ui_error(&e);
    return r;
}

/* The overall exit code, after one more: the policy's only if nothing else failed. */
static int worse(int code, int r)
{
    if (r >= 0)
        return code;
    return r == -ERR_POLICY && code != EXIT_FAILED ? EXIT_POLICY : EXIT_FAILED;
}

int for_each(const struct args *a, const struct action *act)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_STRLIST struct strlist names = {0};
    struct err e = {0};
    int code = EXIT_OK;
    bool all = act->all && args_has(a, "all");
    if (act->check && act->check(a, &e) < 0)
        return ui_usage(&e);
    if (act->labels && a->n_pos == 0 && !all && !args_has(a, "label"))
        return nothing_selected(a);
    int r = store_open_for(a, &s, &e);
    if (r == 0 && act->labels)
        r = select_names(&s, a, all, &names, &e);
    if (r < 0)
        return ui_fail(&e);
    for (size_t i = 0; i < (act->labels ? names.n : a->n_pos); i++)
        code = worse(code, act_on(&s, a, act->labels ? names.v[i] : a->pos[i], act));
    return code;
}
