/* policy apply: holds running sandboxes to the current policy. */
#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/conform.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/text.h"

#include <stdlib.h>

struct plan {
    const struct args *args;
    struct table table;
    json_t *json;
    size_t n; /* sandboxes that do not conform */
};

static void note(struct plan *p, const char *name, const struct verdict *v)
{
    bool stop = false;
    for (size_t i = 0; i < v->n; i++)
        stop = stop || remedy_for(&v->v[i]) == REMEDY_STOP;
    for (size_t i = 0; i < v->n; i++) {
        const struct finding *f = &v->v[i];
        const char *action = remedy_name(stop ? REMEDY_STOP : remedy_for(f));
        char field[64];
        finding_field(f, field);
        TABLE_ROW(&p->table, name, field, f->asked, f->allowed, action);
        json_add(&p->json, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i}", "sandbox", name,
                                     "field", field, "has", f->asked, "allowed", f->allowed,
                                     "action", action, "file", f->file, "line", (int)f->line));
    }
    p->n += v->n > 0;
}

static int print_plan(const struct plan *p)
{
    AUTO_BUF struct buf out = {.limit = 1 << 22};
    if (wants_json(p->args))
        return ui_print_json(json_incref(p->json));
    if (p->n == 0) {
        ui_note("Every running sandbox complies with the policy.");
        return EXIT_OK;
    }
    (void)table_print(&p->table, &out, NULL);
    return ui_print(&out);
}

static int conform_all(const struct store *s, const struct rulebook *b, struct sandbox *list,
                       struct verdict *v, size_t n)
{
    int code = EXIT_OK;
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        if (!list[i].state.pid)
            continue;
        if (sandbox_conform(s, b, list[i].spec.name, &v[i], ui_warn, &e) < 0)
            code = ui_fail(&e);
        else if (v[i].n)
            ui_success("Conformed", list[i].spec.name);
    }
    return code;
}

static int apply(const struct args *a, const struct store *s, const struct rulebook *b,
                 struct sandbox *list, size_t n)
{
    static const char *const headers[] = {"NAME", "FIELD", "HAS", "ALLOWED", "ACTION"};
    struct plan p = {.args = a, .json = json_array()};
    AUTO_FREE struct verdict *v = calloc(n + 1, sizeof(*v));
    struct err e = {0};
    int r = v ? 0 : err_oom(&e);
    table_init(&p.table, ARRAY_LEN(headers), headers);
    p.table.max[2] = p.table.max[3] = 40;
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (list[i].state.pid)
            r = sandbox_examine(s, b, &list[i].spec, &v[i], &e);
        if (r == 0)
            note(&p, list[i].spec.name, &v[i]);
    }
    int code = r < 0 ? ui_fail(&e) : print_plan(&p);
    if (v && code == EXIT_OK && !args_has(a, "dry-run"))
        code = conform_all(s, b, list, v, n);
    for (size_t i = 0; v && i < n; i++)
        verdict_free(&v[i]);
    table_free(&p.table);
    json_decref(p.json);
    return code;
}

static int policy_apply(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    struct sandbox *list = NULL;
    size_t n = 0;
    int r = rulebook_load(s, &b, e);
    if (r == 0)
        r = store_list(s, &list, &n, e);
    if (r < 0)
        return r;
    if (n)
        qsort(list, n, sizeof(*list), sandbox_by_name);
    int code = apply(a, s, b, list, n);
    sandbox_list_free(list, n);
    return code;
}

const struct cmd cmd_policy_apply = {
    .name = "apply",
    .flags = CMD_DESTROYS,
    .summary = "Make running sandboxes comply with the current policy",
    .opts = OPTIONS({"dry-run", 0, NULL, "Show what would be done, without doing it"},
                    POLICY_OPTION, FORMAT_OPTION, QUIET_OPTION),
    .details = "A policy applies when sandboxes are created, started or changed; running ones are "
               "left alone until this command. It first shows where they exceed the policy. "
               "Network rules and published ports are changed while they run; for anything else a "
               "sandbox is stopped, and does not start again until it is changed.",
    .examples = "  msb policy apply --dry-run\n"
                "  msb policy apply",
    .with_store = policy_apply,
};
