/* Changes the settings of a sandbox. All of them, or none: everything is checked on a copy of the
 * spec before anything is stopped or written. */
#include "sandbox/modify.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/env.h"
#include "cli/options/resource.h"
#include "cli/options/sandbox.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct modify {
    const struct args *args;
    struct spec_changes changes;
    const char *obstacle; /* why a running sandbox cannot have them at once; NULL: it can */
    enum status status;
    bool running;
};

/* --- what changes ---------------------------------------------------------------------------- */

/* A ceiling that was set is raised with what outgrows it, unless it was also given. */
static int set_cpus(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    int r = cpus_option(m->args, "cpus", &s->cpus, e);
    if (r > 0 && s->max_cpus > 0)
        s->max_cpus = MAX(s->max_cpus, s->cpus);
    if (r >= 0)
        r = cpus_option(m->args, "max-cpus", &s->max_cpus, e);
    return MIN(r, 0);
}

static int set_memory(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    int r = memory_option(m->args, "memory", &s->memory_mib, e);
    if (r > 0 && s->max_memory_mib > 0)
        s->max_memory_mib = MAX(s->max_memory_mib, s->memory_mib);
    if (r >= 0)
        r = memory_option(m->args, "max-memory", &s->max_memory_mib, e);
    return MIN(r, 0);
}

static int set_root_disk(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(m->args, "root-disk");
    uint64_t bytes;
    if (!v)
        return 0;
    int r = parse_size(v, MIB, &bytes);
    if (r < 0 || bytes == 0)
        return args_bad_value(m->args, "root-disk", v,
                              r == -ERANGE ? "too large" : PARSE_SIZE_EXAMPLES, e);
    s->root_disk_bytes = bytes;
    return 0;
}

static int set_workdir(struct modify *m, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(m->args, "workdir");
    if (!v)
        return 0;
    char *copy = *v ? strdup(v) : NULL; /* "" goes back to / */
    if (*v && !copy)
        return err_oom(e);
    free(s->workdir);
    s->workdir = copy;
    return 0;
}

/* Removes entry i. */
static void drop_entry(struct strlist *l, size_t i)
{
    free(l->v[i]);
    memmove(&l->v[i], &l->v[i + 1], (l->n - i) * sizeof(char *)); /* with the NULL at the end */
    l->n--;
}

static int remove_key(struct strlist *l, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < l->n; i++)
        if (strncmp(l->v[i], key, n) == 0 && l->v[i][n] == '=') {
            drop_entry(l, i);
            break;
        }
    return 0;
}

static int unbind(struct sandbox_spec *s, const char *name, struct err *e)
{
    if (spec_bound_remove(&s->net.bound, name) == -ENOENT)
        return err_set(e, ENOENT, "secret '%s' is not bound in sandbox '%s'", name, s->name);
    return 0;
}

static int repeated(struct sandbox_spec *s, const struct arg_opt *o, struct err *e)
{
    const char *name = o->opt->name;
    if (strcmp(name, "env") == 0)
        return env_option(&s->env, o->value, e);
    if (strcmp(name, "label") == 0)
        return spec_add_label(s, o->value, e);
    if (strcmp(name, "env-rm") == 0)
        return remove_key(&s->env, o->value);
    if (strcmp(name, "label-rm") == 0)
        return remove_key(&s->labels, o->value);
    if (strcmp(name, "secret") == 0)
        return spec_bound_add(&s->net.bound, o->value, e);
    return strcmp(name, "secret-rm") == 0 ? unbind(s, o->value, e) : 0;
}

static int edit(struct sandbox_spec *s, void *ctx, struct err *e)
{
    struct modify *m = ctx;
    int r = set_cpus(m, s, e);
    if (r == 0)
        r = set_memory(m, s, e);
    if (r == 0)
        r = set_root_disk(m, s, e);
    if (r == 0)
        r = set_workdir(m, s, e);
    if (r == 0)
        r = security_options(m->args, s, e);
    if (r == 0)
        r = spec_secure_mounts(s, e);
    for (size_t i = 0; r == 0 && i < m->args->n_opts; i++)
        r = repeated(s, &m->args->opts[i], e);
    return r;
}

/* --- output ---------------------------------------------------------------------------------- */

/* When they take effect: all at the same time. */
static const char *disposition(const struct modify *m)
{
    if (!m->running || args_has(m->args, "next-start"))
        return "next start";
    return m->obstacle ? "requires restart" : "live";
}

static int print_json(const struct modify *m, const char *name, bool applied)
{
    const char *policy = args_has(m->args, "restart")      ? "restart"
                         : args_has(m->args, "next-start") ? "next_start"
                                                           : "no_restart";
    json_t *changes = json_array();
    for (size_t i = 0; i < m->changes.n; i++)
        json_add(&changes, spec_change_json(&m->changes.v[i], disposition(m)));
    return ui_print_json(json_pack("{s:s, s:s, s:b, s:s, s:o, s:[], s:[]}", "sandbox", name,
                                   "status", status_lower(m->status), "applied", applied, "policy",
                                   policy, "changes", changes, "conflicts", "warnings"));
}

/* "max_cpus" is max cpus to a human reader. */
static void add_field(struct table *t, const char *field)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%s", field);
    for (char *p = text; *p; p++)
        *p = *p == '_' ? ' ' : *p;
    table_add(t, text);
}

static int print_table(const struct modify *m)
{
    static const char *const headers[] = {"FIELD", "CHANGE", "BEFORE", "AFTER"};
    AUTO_TABLE struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < m->changes.n; i++) {
        const struct spec_change *c = &m->changes.v[i];
        add_field(&t, c->field);
        TABLE_ROW(&t, spec_change_kind(c), c->before ? c->before : "-", c->after ? c->after : "-");
    }
    int code = m->changes.n ? show_table(&t, 0) : EXIT_OK;
    char text[96];
    (void)snprintf(text, sizeof(text), "%zu change%s, not applied (--dry-run)%s%s", m->changes.n,
                   m->changes.n == 1 ? "" : "s", m->changes.n ? "; in force: " : "",
                   m->changes.n ? disposition(m) : "");
    ui_note(text);
    return code;
}

/* --- the verb -------------------------------------------------------------------------------- */

/* Finds what would change, and checks that it may. */
static int rehearse(const struct store *s, struct modify *m, const char *name, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_SPEC struct sandbox_spec changed;
    spec_init(&changed);
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0)
        return r;
    AUTO_JSON json_t *j = spec_to_json(&sb.spec);
    r = j ? spec_from_json(&changed, j, e) : err_oom(e);
    if (r == 0)
        r = edit(&changed, m, e);
    if (r == 0)
        r = spec_check_change(&sb.spec, &changed, e);
    if (r == 0 && spec_diff(&sb.spec, &changed, &m->changes) < 0)
        r = err_oom(e);
    m->status = sb.state.status;
    m->running = sb.state.pid != 0;
    if (r == 0)
        m->obstacle = modify_obstacle(s, &sb, &m->changes, &changed);
    return r;
}

static int modify(const struct store *s, struct modify *m, const char *name, struct err *e)
{
    int r = rehearse(s, m, name, e);
    if (r < 0 || args_has(m->args, "dry-run") || m->changes.n == 0)
        return r;
    bool later = args_has(m->args, "next-start");
    bool restart = m->obstacle && args_has(m->args, "restart");
    if (restart)
        r = sandbox_stop(s, name, STOP_GRACE_DEFAULT_MS, false, ui_warn, e);
    if (r == 0)
        r = sandbox_modify(s, name, later ? MODIFY_NEXT : MODIFY_NOW, edit, m, e);
    if (restart) { /* also if that failed, since it ran before */
        struct err *second = r < 0 ? NULL : e;
        int again = sandbox_start(s, name, ui_warn, second);
        r = r < 0 ? r : again;
    }
    return r;
}

static int modify_one(const struct args *a, const struct store *s, struct err *e)
{
    struct modify m = {.args = a, .status = STATUS_STOPPED};
    int r = modify(s, &m, a->pos[0], e);
    bool dry = args_has(a, "dry-run");
    if (r == 0 && wants_json(a))
        r = print_json(&m, a->pos[0], !dry);
    else if (r == 0 && dry)
        r = print_table(&m);
    else if (r == 0)
        ui_success("Modified", a->pos[0]);
    spec_changes_free(&m.changes);
    return r;
}

static const struct opt rare_opts[] = {
    {"max-cpus", 0, "N", "CPUs it may grow to while it runs"},
    {"max-memory", 0, "SIZE", "Memory it may grow to, for inspect and policies"},
    {"workdir", 'w', "DIR", "Working directory of commands; empty means /"},
    {"env-rm", 0, "KEY", "Remove an environment variable", OPT_REPEAT},
    {"label-rm", 0, "KEY", "Remove a label", OPT_REPEAT},
    {"secret", 0, "NAME@HOST[,...]", "Bind a secret to HOST, or to more hosts", OPT_REPEAT},
    {"secret-rm", 0, "NAME", "Unbind a secret from all its hosts", OPT_REPEAT},
    {"next-start", 0, NULL,
     "Apply the change at the next start; a running sandbox continues unchanged"},
    POLICY_OPTION,
    {0},
};
static const struct opt_group rare_group = {"Less common", rare_opts};

const struct cmd cmd_modify = {
    .name = "modify",
    .alias = "mod",
    .group = GROUP_SANDBOX,
    .summary = "Change the settings of a sandbox",
    .opts = OPTIONS({"cpus", 'c', "N", "CPUs; a fraction is a quota"},
                    {"memory", 'm', "SIZE", "Memory of the guest"},
                    {"root-disk", 0, "SIZE", "Grow the writable disk to this size"},
                    {"env", 'e', "KEY[=VALUE]",
                     "Set an environment variable; KEY alone copies yours", OPT_REPEAT},
                    {"label", 0, "KEY[=VALUE]", "Attach a label", OPT_REPEAT},
                    {"restart", 0, NULL, "Restart a running sandbox to apply the change",
                     .conflicts = "next-start"},
                    {"dry-run", 0, NULL, "Show what would change, without changing it"},
                    FORMAT_OPTION, QUIET_OPTION),
    .groups = GROUPS(&security_group, &rare_group),
    .pos = ONE("NAME", "Sandbox to change"),
    .details =
        "Changes to a stopped sandbox apply at its next start. A running one gets new labels and "
        "CPUs (up to its --max-cpus, where the host has a cgroup for it) at once, and secrets if "
        "it was started with one (--secret): new commands see their placeholders, and the next "
        "request carries their values. Other changes need --restart, or --next-start: 'msb "
        "inspect' shows those as pending until then. Either all changes are made or none. A disk "
        "can only grow, unless it is in memory; the guest's file system follows at the next start.",
    .examples = "  msb modify web --root-disk 20G\n"
                "  msb modify web --memory 2G --env DEBUG=1 --restart",
    .with_store = modify_one,
};
