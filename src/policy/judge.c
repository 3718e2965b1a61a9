/* Holds a spec to a rulebook: defaults, then every setting that applies. */
#include "policy/impl.h"

#include "store/audit.h"
#include "util/diag.h"
#include "util/json.h"
#include "util/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- findings --------------------------------------------------------------------------------- */

void judge_find(struct judge *j, const struct layer *l, const struct setting *s, unsigned line,
                enum outcome o, const char *asked, const char *allowed)
{
    struct verdict *v = j->out;
    struct finding *more = reallocarray(v->v, v->n + 1, sizeof(*more));
    if (!more) {
        j->failed = true;
        return;
    }
    v->v = more;
    struct finding *f = &v->v[v->n++];
    *f = (struct finding){.outcome = o,
                          .section = s ? s->field->section : "",
                          .key = s ? s->field->key : "rules",
                          .asked = strdup(asked),
                          .allowed = strdup(allowed),
                          .file = l->file,
                          .line = line,
                          .rule = l->name};
    j->failed = j->failed || !f->asked || !f->allowed;
    v->refused = v->refused || o == OUTCOME_REFUSED;
}

void judge_none(struct judge *j, const struct book_file *none)
{
    struct layer at = {.file = none->name, .name = none->all.name};
    judge_find(j, &at, NULL, none->rules_line, OUTCOME_REFUSED,
               "a sandbox that no rule set matches", "what one of them matches");
}

void verdict_free(struct verdict *v)
{
    for (size_t i = 0; i < v->n; i++) {
        free(v->v[i].asked);
        free(v->v[i].allowed);
    }
    free(v->v);
    *v = (struct verdict){0};
}

const char *outcome_name(enum outcome o)
{
    static const char *const names[OUTCOMES] = {[OUTCOME_ALLOWED] = "allowed",
                                                [OUTCOME_DEFAULT] = "default",
                                                [OUTCOME_NARROWED] = "narrowed",
                                                [OUTCOME_REFUSED] = "refused"};
    return names[o];
}

void finding_field(const struct finding *f, char out[64])
{
    (void)snprintf(out, 64, "%s%s%s", f->section, *f->section ? "." : "", f->key);
}

json_t *verdict_json(const struct verdict *v)
{
    json_t *a = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const struct finding *f = &v->v[i];
        char field[64];
        finding_field(f, field);
        json_add(&a, json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:s}", "field", field, "outcome",
                               outcome_name(f->outcome), "asked", f->asked, "allowed", f->allowed,
                               "file", f->file, "line", (int)f->line, "rule", f->rule));
    }
    return json_pack("{s:b, s:o}", "refused", v->refused, "findings", a);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static uint64_t get_cpus(const struct sandbox_spec *s)
{
    return (uint64_t)(spec_max_cpus(s) * 1000 + 0.5); /* it may grow to this */
}

static void set_cpus(struct sandbox_spec *s, uint64_t v)
{
    s->cpus = (double)v / 1000;
    s->max_cpus = 0;
}

static uint64_t get_memory(const struct sandbox_spec *s)
{
    return spec_max_memory_mib(s) << 20;
}

static void set_memory(struct sandbox_spec *s, uint64_t v)
{
    s->memory_mib = v >> 20;
    s->max_memory_mib = 0;
}

static uint64_t get_disk(const struct sandbox_spec *s)
{
    return s->root_disk_bytes;
}

static void set_disk(struct sandbox_spec *s, uint64_t v)
{
    if (s->root_disk == ROOT_DISK_MANAGED)
        s->root_disk_bytes = v;
}

static uint64_t get_processes(const struct sandbox_spec *s)
{
    return s->security.pids;
}

static void set_processes(struct sandbox_spec *s, uint64_t v)
{
    s->security.pids = (uint32_t)MIN(v, (uint64_t)SPEC_PIDS_MAX);
}

static uint64_t get_lifetime(const struct sandbox_spec *s)
{
    return s->max_duration_ms;
}

static void set_lifetime(struct sandbox_spec *s, uint64_t v)
{
    s->max_duration_ms = v;
}

static uint64_t get_idle(const struct sandbox_spec *s)
{
    return s->idle_timeout_ms;
}

static void set_idle(struct sandbox_spec *s, uint64_t v)
{
    s->idle_timeout_ms = v;
}

static uint64_t get_output(const struct sandbox_spec *s)
{
    return s->output_max;
}

static void set_output(struct sandbox_spec *s, uint64_t v)
{
    s->output_max = v;
}

const struct quantity *quantity_find(const char *key)
{
    static const struct quantity all[] = {
        {"cpus", SAID_CPUS, false, get_cpus, set_cpus},
        {"memory", SAID_MEMORY, false, get_memory, set_memory},
        {"disk", SAID_DISK, false, get_disk, set_disk},
        {"processes", SAID_PROCESSES, true, get_processes, set_processes},
        {"lifetime", SAID_LIFETIME, true, get_lifetime, set_lifetime},
        {"idle", SAID_IDLE, true, get_idle, set_idle},
        {"output", SAID_OUTPUT, true, get_output, set_output},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i].key, key) == 0)
            return &all[i];
    return NULL;
}

/* The value from the last file that has one: a user's own takes precedence over the operator's, and
 * a rule set's over that for all sandboxes. Caps always apply. */
static void fill_defaults(struct judge *j, const struct chosen *c)
{
    for (const struct field *f = policy_fields; f->key; f++) {
        const struct quantity *q =
            strcmp(f->section, "defaults") == 0 ? quantity_find(f->key) : NULL;
        const struct layer *from = NULL;
        const struct setting *s = NULL;
        for (size_t i = 0; q && i < c->n; i++)
            if (layer_get(c->v[i], "defaults", f->key)) {
                from = c->v[i];
                s = layer_get(from, "defaults", f->key);
            }
        if (!s || (j->said & q->said))
            continue;
        char was[64], now[64];
        number_text(f->type, q->get(j->spec), was, sizeof(was));
        q->set(j->spec, s->number);
        number_text(f->type, q->get(j->spec), now, sizeof(now));
        judge_find(j, from, s, s->line, OUTCOME_DEFAULT, was, now);
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

int rulebook_judge(const struct rulebook *b, const struct store *s, enum hold why, unsigned said,
                   struct sandbox_spec *spec, struct verdict *ret, struct err *e)
{
    struct judge j = {.store = s, .why = why, .said = said, .spec = spec, .out = ret};
    struct chosen c = {0};
    const struct book_file *none = NULL;
    if (!b)
        return 0;
    if (rulebook_choose(b, spec, &c, &none) < 0) {
        judge_none(&j, none);
        return j.failed ? err_oom(e) : 0;
    }
    if (why == HOLD_CREATE)
        fill_defaults(&j, &c);
    for (size_t i = 0; i < c.n; i++)
        for (size_t k = 0; k < c.v[i]->n; k++)
            if (c.v[i]->set[k].field->check)
                c.v[i]->set[k].field->check(&j, c.v[i], &c.v[i]->set[k]);
    return j.failed ? err_oom(e) : 0;
}

void finding_origin(const struct finding *f, char *out, size_t size)
{
    (void)snprintf(out, size, "%s:%u%s%s%s", f->file, f->line, *f->rule ? ", rule set '" : "",
                   f->rule, *f->rule ? "'" : "");
}

void policy_words(const char *field, const char *asked, const char *allowed, const char *origin,
                  char *out, size_t size)
{
    (void)snprintf(out, size, "%s: asked for %.200s, allowed is %.300s (%s)", field, asked, allowed,
                   origin);
}

static void finding_text(const struct finding *f, char *out, size_t size)
{
    char field[64], origin[ERR_MSG_MAX];
    finding_field(f, field);
    finding_origin(f, origin, sizeof(origin));
    policy_words(field, f->asked, f->allowed, origin, out, size);
}

static int refuse(const struct verdict *v, enum hold why, const char *name, struct err *e)
{
    char text[ERR_MSG_MAX];
    bool first = true;
    for (size_t i = 0; i < v->n; i++) {
        if (v->v[i].outcome != OUTCOME_REFUSED)
            continue;
        finding_text(&v->v[i], text, sizeof(text));
        if (first)
            (void)err_set(e, ERR_POLICY, "refused by policy: %s", text);
        else
            err_hint(e, "also %s", text);
        first = false;
    }
    if (why == HOLD_START)
        err_hint(e, "change it to what is allowed with 'msb modify %s', or remove it", name);
    return -ERR_POLICY;
}

static bool is_counted(const struct verdict *v)
{
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->v[i].section, "caps") == 0 && strcmp(v->v[i].key, "sandboxes") == 0)
            return true;
    return false;
}

static const char *const verbs[] = {
    [HOLD_AHEAD] = "create",  [HOLD_CREATE] = "create", [HOLD_START] = "start",
    [HOLD_CHANGE] = "modify", [HOLD_COPY] = "copy",     [HOLD_EXEC] = "exec"};

struct rulebook *rulebook_seen;

int rulebook_load_for(const struct store *s, enum hold why, const char *name, struct rulebook **ret,
                      struct err *e)
{
    struct err why_not = {0};
    int r = rulebook_load(s, ret, &why_not);
    if (r == -ERR_POLICY)
        audit_refused(s, verbs[why], name,
                      &(struct audit_refusal){.field = "policy",
                                              .asked = "anything",
                                              .allowed = "nothing before it can be read",
                                              .origin = why_not.msg});
    if (r < 0)
        err_copy(e, &why_not);
    if (r == 0 && *ret) {
        rulebook_free(rulebook_seen);
        (*ret)->shared++;
        rulebook_seen = *ret;
    }
    return r;
}

/* Records it in the audit log. */
static void record(const struct store *s, enum hold why, const char *name, const struct verdict *v)
{
    for (size_t i = 0; i < v->n; i++) {
        const struct finding *f = &v->v[i];
        char field[64], origin[512];
        if (f->outcome != OUTCOME_REFUSED)
            continue;
        finding_field(f, field);
        (void)snprintf(origin, sizeof(origin), "%.480s:%u", f->file, f->line);
        audit_refused(
            s, verbs[why], name,
            &(struct audit_refusal){
                .field = field, .asked = f->asked, .allowed = f->allowed, .origin = origin});
    }
}

int verdict_refuse(const struct store *s, enum hold why, const char *name, const struct verdict *v,
                   struct err *e)
{
    record(s, why, name, v);
    return refuse(v, why, name ? name : "", e);
}

/* Whether all entries of `a` are in `b`. */
static bool is_less(const struct strlist *a, const struct strlist *b)
{
    bool less = a->n <= b->n;
    for (size_t i = 0; less && i < a->n; i++)
        less = strlist_has(b, a->v[i]);
    return less;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Whether what a finding concerns is the same in both specs. A finding only names a part of it:
 * that there are ports, the first of several network rules, a secret's name without its hosts. If
 * no rule set matches, no setting was examined. */
static bool is_untouched(const struct finding *f, const struct sandbox_spec *was,
                         const struct sandbox_spec *now)
{
    const struct spec_net *a = &was->net, *b = &now->net;
    if (strcmp(f->key, "rules") == 0)
        return false;
    if (strcmp(f->asked, "--port") == 0)
        return b->n_ports <= a->n_ports;
    if (strcmp(f->asked, "--secret") == 0)
        return is_less(&b->bound.secrets, &a->bound.secrets);
    if (strcmp(f->asked, "--secret-env") == 0)
        return is_less(&now->secrets, &was->secrets);
    if (strcmp(f->section, "egress") == 0 && !f->fixed)
        return same_text(a->profile, b->profile) && strlist_same(&a->rules, &b->rules) &&
               a->egress == b->egress && a->strict == b->strict;
    return strcmp(f->section, "secrets") != 0 ||
           same_text(spec_bound_find(&a->bound, f->asked), spec_bound_find(&b->bound, f->asked));
}

/* Whether the same was refused before. */
static bool is_old(const struct finding *f, const struct verdict *before)
{
    for (size_t i = 0; i < before->n; i++) {
        const struct finding *o = &before->v[i];
        if (o->outcome == f->outcome && o->line == f->line && o->number == f->number &&
            strcmp(o->key, f->key) == 0 && strcmp(o->section, f->section) == 0 &&
            strcmp(o->file, f->file) == 0 && strcmp(o->asked, f->asked) == 0)
            return true;
    }
    return false;
}

static int hold_change(const struct store *s, enum hold why, struct sandbox_spec *was,
                       struct sandbox_spec *now, struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    AUTO_VERDICT struct verdict before = {0}, after = {0};
    int r = rulebook_load_for(s, why, now->name, &b, e);
    if (r < 0 || !b)
        return r;
    r = rulebook_judge(b, s, why, SAID_ALL, was, &before, e);
    if (r == 0)
        r = rulebook_judge(b, s, why, SAID_ALL, now, &after, e);
    bool refused = false;
    for (size_t i = 0; i < after.n; i++) {
        if (is_untouched(&after.v[i], was, now) && is_old(&after.v[i], &before))
            after.v[i].outcome = OUTCOME_ALLOWED;
        refused = refused || after.v[i].outcome == OUTCOME_REFUSED;
    }
    if (r < 0 || !refused)
        return r;
    return verdict_refuse(s, why, now->name, &after, e);
}

int policy_hold_change(const struct store *s, struct sandbox_spec *was, struct sandbox_spec *now,
                       struct err *e)
{
    return hold_change(s, HOLD_CHANGE, was, now, e);
}

int policy_hold_exec(const struct store *s, const struct sandbox_spec *spec,
                     const struct strlist *secrets, struct err *e)
{
    struct sandbox_spec was = *spec, now = *spec; /* only reads what they point to */
    AUTO_STRLIST struct strlist all = {0};
    if (secrets->n == 0)
        return 0;
    if (strlist_copy(&all, &spec->secrets) < 0 || strlist_copy(&all, secrets) < 0)
        return err_oom(e);
    now.secrets = all;
    return hold_change(s, HOLD_EXEC, &was, &now, e);
}

int policy_hold(const struct store *s, enum hold why, unsigned said, struct sandbox_spec *spec,
                json_t **limits, struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    AUTO_VERDICT struct verdict v = {0};
    static struct rulebook
        *kept; /* for HOLD_CREATE, which may come twice: one policy per command */
    uint64_t t0 = now_ns();
    b = why == HOLD_CREATE ? steal_ptr(&kept) : NULL;
    int r = b ? 0 : rulebook_load_for(s, why, spec->name, &b, e);
    if (r < 0 || !b)
        return r;
    r = rulebook_judge(b, s, why == HOLD_AHEAD ? HOLD_CREATE : why, said, spec, &v, e);
    if (r == 0 && v.refused)
        r = verdict_refuse(s, why, spec->name, &v, e);
    for (size_t i = 0; i < v.n; i++) {
        char text[ERR_MSG_MAX];
        if (v.v[i].outcome == OUTCOME_ALLOWED)
            continue;
        finding_text(&v.v[i], text, sizeof(text));
        diag_debug("policy, %s: %s", outcome_name(v.v[i].outcome), text);
    }
    diag_took("holding it to the policy", t0);
    if (r == 0)
        r = spec_validate(spec, e);
    if (r == 0 && limits)
        r = policy_limits(b, spec, limits, e);
    bool counted = r == 0 && why == HOLD_CREATE && is_counted(&v);
    if (r == 0 && (why == HOLD_AHEAD || counted)) {
        rulebook_free(kept);
        kept = steal_ptr(&b);
    }
    return r < 0 ? r : counted;
}
