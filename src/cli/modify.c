/* Changes the settings of a sandbox. All of them, or none: everything is checked on a copy of the
 * spec before anything is stopped or written. */
#include "sandbox/modify.h"
#include "cli/common_opts.h"
#include "cli/env_opts.h"
#include "cli/noun.h"
#include "cli/sandbox_opts.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "client/net_request.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct change {
    const char *field;
    const char *change;   /* set, remove */
    char *before, *after; /* NULL = none */
};

struct modify {
    const struct args *args;
    struct change *changes;
    size_t n;
    bool harmless;   /* a running sandbox need not stop: only what is_live() is about changes */
    bool intercepts; /* it runs, and has an interceptor, which can be told about secrets */
};

/* --- what changes ---------------------------------------------------------------------------- */

static bool is_live(const struct modify *m, const char *field)
{
    return strcmp(field, "label") == 0 || (m->intercepts && strcmp(field, "secret") == 0);
}

/* Copies both; equal values are not a change. */
static int note(struct modify *m, const char *field, const char *before, const char *after,
                struct err *e)
{
    if (before && after ? strcmp(before, after) == 0 : !before && !after)
        return 0;
    struct change *more = reallocarray(m->changes, m->n + 1, sizeof(*more));
    if (!more)
        return err_oom(e);
    m->changes = more;
    struct change *c = &more[m->n];
    *c = (struct change){.field = field,
                         .change = after ? "set" : "remove",
                         .before = before ? strdup(before) : NULL,
                         .after = after ? strdup(after) : NULL};
    m->n++;
    m->harmless = m->harmless && is_live(m, field);
    return (before && !c->before) || (after && !c->after) ? err_oom(e) : 0;
}

static void forget_changes(struct modify *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->changes[i].before);
        free(m->changes[i].after);
    }
    free(m->changes);
    m->changes = NULL;
    m->n = 0;
}

static int set_cpus(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(m->args, "cpus");
    char before[32], after[32];
    uint64_t milli;
    if (!v)
        return 0;
    if (parse_milli(v, &milli) < 0 || milli > SPEC_CPUS_MAX * 1000ULL)
        return args_bad_value(m->args, "cpus", v,
                              "expected a number up to 255, such as 1, 2 or 0.5", e);
    (void)snprintf(before, sizeof(before), "%g", s->cpus);
    s->cpus = (double)milli / 1000;
    (void)snprintf(after, sizeof(after), "%g", s->cpus);
    return note(m, "cpus", before, after, e);
}

static int size_option(struct modify *m, const char *name, uint64_t *bytes, struct err *e)
{
    const char *v = args_get(m->args, name);
    int r = parse_size(v, MIB, bytes);
    if (r == 0 && *bytes == 0)
        r = -EINVAL;
    return r < 0 ? args_bad_value(m->args, name, v,
                                  r == -ERANGE ? "too large" : PARSE_SIZE_EXAMPLES, e)
                 : 0;
}

static int set_memory(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    char before[32], after[32];
    uint64_t bytes;
    if (!args_has(m->args, "memory"))
        return 0;
    int r = size_option(m, "memory", &bytes, e);
    if (r < 0)
        return r;
    format_mib(s->memory_mib, before, sizeof(before));
    s->memory_mib = bytes / MIB + (bytes % MIB != 0);
    format_mib(s->memory_mib, after, sizeof(after));
    return note(m, "memory", before, after, e);
}

static int set_root_disk(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    char before[32], after[32];
    uint64_t bytes;
    if (!args_has(m->args, "root-disk"))
        return 0;
    int r = size_option(m, "root-disk", &bytes, e);
    if (r < 0)
        return r;
    format_mib(s->root_disk_bytes / MIB, before, sizeof(before));
    s->root_disk_bytes = bytes;
    format_mib(s->root_disk_bytes / MIB, after, sizeof(after));
    return note(m, "root-disk", before, after, e);
}

static int set_workdir(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(m->args, "workdir");
    if (!v)
        return 0;
    AUTO_FREE char *copy = *v ? strdup(v) : NULL; /* "" goes back to / */
    if (*v && !copy)
        return err_oom(e);
    int r = note(m, "workdir", s->workdir, copy, e);
    free(s->workdir);
    s->workdir = steal_ptr(&copy);
    return r;
}

/* Takes entry i out. */
static void drop_entry(struct strlist *l, size_t i)
{
    free(l->v[i]);
    memmove(&l->v[i], &l->v[i + 1], (l->n - i) * sizeof(char *)); /* with the NULL at the end */
    l->n--;
}

static int remove_key(struct modify *m, const char *field, struct strlist *l, const char *key,
                      struct err *e)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < l->n; i++)
        if (strncmp(l->v[i], key, n) == 0 && l->v[i][n] == '=') {
            int r = note(m, field, l->v[i], NULL, e);
            drop_entry(l, i);
            return r;
        }
    return 0;
}

/* The entry with the key of KEY or KEY=VALUE; NULL: none. */
static const char *entry_of(const struct strlist *l, const char *arg)
{
    size_t n = strcspn(arg, "=");
    for (size_t i = 0; i < l->n; i++)
        if (strncmp(l->v[i], arg, n) == 0 && l->v[i][n] == '=')
            return l->v[i];
    return NULL;
}

static int set_entry(struct modify *m, struct sandbox_spec *s, const char *field, const char *arg,
                     struct err *e)
{
    bool env = strcmp(field, "env") == 0;
    struct strlist *l = env ? &s->env : &s->labels;
    const char *found = entry_of(l, arg);
    AUTO_FREE char *before = found ? strdup(found) : NULL;
    if (found && !before)
        return err_oom(e);
    int r = env ? env_option(l, arg, e) : spec_add_label(s, arg, e);
    return r < 0 ? r : note(m, field, before, entry_of(l, arg), e);
}

static int set_security(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    AUTO_FREE char *before = spec_security_text(&s->security);
    int r = security_options(m->args, s, e);
    if (r == 0)
        r = spec_secure_mounts(s, e);
    AUTO_FREE char *after = spec_security_text(&s->security);
    if (r == 0 && (!before || !after))
        return err_oom(e);
    return r < 0 ? r : note(m, "security", before, after, e);
}

/* Binds a secret to hosts, or (text is a name) unbinds it. */
static int set_bound(struct modify *m, struct sandbox_spec *s, const char *text, bool drop,
                     struct err *e)
{
    struct spec_bound *b = &s->net.bound;
    AUTO_FREE char *name = strndup(text, drop ? strlen(text) : strcspn(text, "@"));
    if (!name)
        return err_oom(e);
    const char *found = spec_bound_find(b, name);
    AUTO_FREE char *before = found ? strdup(found) : NULL;
    if (found && !before)
        return err_oom(e);
    if (drop && !found)
        return err_set(e, ENOENT, "secret '%s' is not bound in sandbox '%s'", name, s->name);
    int r = drop ? spec_bound_remove(b, name) : spec_bound_add(b, text, e);
    return r < 0 ? r : note(m, "secret", before, spec_bound_find(b, name), e);
}

static int repeated(struct modify *m, struct sandbox_spec *s, const struct arg_opt *o,
                    struct err *e)
{
    const char *name = o->opt->name;
    if (strcmp(name, "env") == 0 || strcmp(name, "label") == 0)
        return set_entry(m, s, name, o->value, e);
    if (strcmp(name, "env-rm") == 0)
        return remove_key(m, "env", &s->env, o->value, e);
    if (strcmp(name, "label-rm") == 0)
        return remove_key(m, "label", &s->labels, o->value, e);
    if (strcmp(name, "secret") == 0 || strcmp(name, "secret-rm") == 0)
        return set_bound(m, s, o->value, strcmp(name, "secret-rm") == 0, e);
    return 0;
}

static int edit(struct sandbox_spec *s, void *ctx, struct err *e)
{
    struct modify *m = ctx;
    forget_changes(m);
    m->harmless = true;
    int r = set_cpus(m, s, e);
    if (r == 0)
        r = set_memory(m, s, e);
    if (r == 0)
        r = set_root_disk(m, s, e);
    if (r == 0)
        r = set_workdir(m, s, e);
    if (r == 0)
        r = set_security(m, s, e);
    for (size_t i = 0; r == 0 && i < m->args->n_opts; i++)
        r = repeated(m, s, &m->args->opts[i], e);
    return r;
}

/* --- output ---------------------------------------------------------------------------------- */

static json_t *change_json(const struct change *c, const char *disposition)
{
    return json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s}", "kind", "spec", "field", c->field,
                     "change", c->change, "before", c->before, "after", c->after, "disposition",
                     disposition);
}

static int print_json(const struct modify *m, const char *name, enum status st, bool applied)
{
    bool restart = args_has(m->args, "restart");
    json_t *changes = json_array();
    for (size_t i = 0; i < m->n; i++) {
        bool live = is_live(m, m->changes[i].field);
        (void)json_array_append_new(changes, change_json(&m->changes[i], live ? "live"
                                                                         : st == STATUS_RUNNING
                                                                             ? "requires restart"
                                                                             : "next start"));
    }
    return ui_print_json(json_pack("{s:s, s:s, s:b, s:s, s:o, s:[], s:[]}", "sandbox", name,
                                   "status", status_name(st), "applied", applied, "policy",
                                   restart ? "restart" : "default", "changes", changes, "conflicts",
                                   "warnings"));
}

static int print_table(const struct modify *m)
{
    static const char *const headers[] = {"FIELD", "CHANGE", "BEFORE", "AFTER"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < m->n; i++) {
        const struct change *c = &m->changes[i];
        table_add(&t, c->field);
        table_add(&t, c->change);
        table_add(&t, c->before ? c->before : "-");
        table_add(&t, c->after ? c->after : "-");
    }
    int code = m->n ? show_table(&t, 0) : EXIT_OK;
    table_free(&t);
    char text[80];
    (void)snprintf(text, sizeof(text), "%zu change%s, not applied (--dry-run)", m->n,
                   m->n == 1 ? "" : "s");
    ui_note(text);
    return code;
}

/* --- the verb -------------------------------------------------------------------------------- */

/* Finds what would change, and checks that it may. */
static int rehearse(const struct store *s, struct modify *m, const char *name, enum status *ret,
                    bool *running, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_SPEC struct sandbox_spec changed;
    spec_init(&changed);
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0)
        return r;
    m->intercepts = sb.state.pid != 0 && net_request_secrets(sb.dirfd, -1, NULL, NULL, NULL) == 0;
    AUTO_JSON json_t *j = spec_to_json(&sb.spec);
    r = j ? spec_from_json(&changed, j, e) : err_oom(e);
    if (r == 0)
        r = edit(&changed, m, e);
    if (r == 0)
        r = spec_check_change(&sb.spec, &changed, e);
    *ret = sb.state.status;
    *running = sb.state.pid != 0;
    return r;
}

static int modify(const struct store *s, struct modify *m, const char *name, enum status *st,
                  struct err *e)
{
    bool running;
    int r = rehearse(s, m, name, st, &running, e);
    if (r < 0 || args_has(m->args, "dry-run") || m->n == 0)
        return r;
    bool restart = running && !m->harmless && args_has(m->args, "restart");
    if (running && !m->harmless && args_has(m->args, "next-start")) {
        (void)err_set(e, EBUSY, "--next-start is not available yet for a running sandbox");
        err_hint(e, "stop it first, or use --restart");
        return -EBUSY;
    }
    if (restart)
        r = sandbox_stop(s, name, STOP_GRACE_DEFAULT_MS, false, ui_warn, e);
    if (r == 0)
        r = sandbox_modify(s, name, m->harmless, edit, m, e);
    if (restart) { /* also when that failed: it ran before */
        struct err *second = r < 0 ? NULL : e;
        int again = sandbox_start(s, name, ui_warn, second);
        r = r < 0 ? r : again;
    }
    return r;
}

static int modify_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    struct modify m = {.args = a};
    enum status st = STATUS_STOPPED;
    int r = store_open(&s, &e);
    s.policy_file = args_get(a, "policy");
    if (r == 0)
        r = modify(&s, &m, a->pos[0], &st, &e);
    int code = r < 0 ? ui_fail(&e) : EXIT_OK;
    bool dry = args_has(a, "dry-run");
    if (r == 0 && wants_json(a))
        code = print_json(&m, a->pos[0], st, !dry);
    else if (r == 0 && dry)
        code = print_table(&m);
    else if (r == 0)
        ui_success("Modified", a->pos[0]);
    forget_changes(&m);
    return code;
}

static const struct opt modify_opts[] = {
    {"cpus", 'c', "N", "CPUs; a fraction is a quota"},
    {"memory", 'm', "SIZE", "Memory of the guest"},
    {"root-disk", 0, "SIZE", "Grow the writable disk to this size"},
    {"env", 'e', "KEY[=VALUE]", "Set an environment variable; KEY alone copies yours", OPT_REPEAT},
    {"label", 0, "KEY[=VALUE]", "Attach a label", OPT_REPEAT},
    {"restart", 0, NULL, "Restart a running sandbox to apply the change",
     .conflicts = "next-start"},
    {"dry-run", 0, NULL, "Show what would change, without changing it"},
    FORMAT_OPTION,
    QUIET_OPTION,
    {"max-cpus", 0, "N", "CPUs it may grow to", OPT_LATER},
    {"max-memory", 0, "SIZE", "Memory it may grow to", OPT_LATER},
    {0},
};

static const struct opt rare_opts[] = {
    {"workdir", 'w', "DIR", "Working directory of commands; empty means /"},
    {"env-rm", 0, "KEY", "Remove an environment variable", OPT_REPEAT},
    {"label-rm", 0, "KEY", "Remove a label", OPT_REPEAT},
    {"secret", 0, "NAME@HOST[,...]", "Bind a secret to HOST, or to more hosts", OPT_REPEAT},
    {"secret-rm", 0, "NAME", "Unbind a secret from all its hosts", OPT_REPEAT},
    {"next-start", 0, NULL, "Apply the change at the next start (the default)"},
    POLICY_OPTION,
    {0},
};
static const struct opt_group rare_group = {"Less common", rare_opts};
static const struct opt_group *const modify_groups[] = {&security_group, &rare_group, NULL};

const struct cmd cmd_modify = {
    .name = "modify",
    .alias = "mod",
    .group = GROUP_SANDBOX,
    .summary = "Change the settings of a sandbox",
    .opts = modify_opts,
    .groups = modify_groups,
    .pos = {.name = "NAME", .help = "Sandbox to change", .required = true},
    .details =
        "Changes to a stopped sandbox apply at its next start. A running one is changed only "
        "with --restart, or if only labels change, or secrets of a sandbox that was started with "
        "one (--secret); new commands see their placeholders, and the next request has their "
        "values. Either all changes are made or none. A "
        "disk can only grow; the guest's file system follows at the next start.",
    .examples = "  msb modify web --root-disk 20G\n"
                "  msb modify web --memory 2G --env DEBUG=1 --restart",
    .run = modify_run,
};
