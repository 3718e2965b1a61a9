/* Limits on requests to a running sandbox, for its monitor to enforce (monitor/ceiling.h). */
#include "policy/impl.h"
#include "util/json.h"
#include "util/utf8.h"

#include <string.h>

static json_t *rules_json(const struct policy *p)
{
    json_t *a = json_array();
    for (size_t i = 0; i < p->n; i++)
        json_add(&a, json_string(p->rule[i].text));
    return a;
}

/* NULL: the setting concerns nothing that can be requested from a running sandbox. */
static json_t *limit_json(const struct setting *s)
{
    bool lifetime = s->field->check == check_cap && strcmp(s->field->key, "lifetime") == 0;
    if (s->field->check == check_egress)
        return json_pack("{s:s, s:o}", "kind", "egress", "rules", rules_json(s->ceiling));
    if (lifetime || s->field->check == check_ports)
        return json_pack("{s:s, s:I}", "kind", lifetime ? "lifetime" : "ports", "most",
                         (json_int_t)MIN(s->number, (uint64_t)INT64_MAX));
    if (s->field->check == check_secrets)
        return json_pack("{s:s, s:o}", "kind", "secrets", "rules", items_json(s));
    return NULL;
}

/* The same, for a forbidden option. */
static json_t *forbidden_json(const char *option)
{
    if (strcmp(option, "port") == 0)
        return json_pack("{s:s, s:i, s:s}", "kind", "ports", "most", 0, "asked", "--port");
    if (strcmp(option, "secret") == 0)
        return json_pack("{s:s, s:[], s:s}", "kind", "secrets", "rules", "asked", "--secret");
    return NULL;
}

/* Adds what a refused client is told. */
static json_t *with_words(json_t *j, const struct layer *l, const struct setting *s, unsigned line)
{
    bool forbidden = s->field->check == check_forbidden;
    struct finding f = {.section = s->field->section,
                        .key = s->field->key,
                        .file = l->file,
                        .line = line,
                        .rule = l->name};
    char field[64], allowed[512], origin[768];
    finding_field(&f, field);
    finding_origin(&f, origin, sizeof(origin));
    utf8_defuse(origin); /* a path can be anything */
    setting_text(s, allowed, sizeof(allowed));
    utf8_defuse(allowed); /* it may have been truncated */
    json_put(&j, "field", json_string(field));
    json_put(&j, "allowed", json_string(forbidden ? FORBIDDEN_TEXT : allowed));
    json_put(&j, "origin", json_string(origin));
    return j;
}

static void add_limits(const struct layer *l, const struct setting *s, json_t **all)
{
    json_t *j = limit_json(s);
    if (j)
        json_add(all, with_words(j, l, s, s->line));
    for (size_t i = 0; s->field->check == check_forbidden && i < s->n; i++) {
        j = forbidden_json(s->item[i].text);
        if (j)
            json_add(all, with_words(j, l, s, s->item[i].line));
    }
}

int policy_limits(const struct rulebook *b, const struct sandbox_spec *spec, json_t **ret,
                  struct err *e)
{
    struct chosen c = {0};
    const struct book_file *none = NULL;
    AUTO_JSON json_t *all = json_array();
    if (b && rulebook_choose(b, spec, &c, &none) < 0)
        c.n = 0; /* it does not start at all */
    for (size_t i = 0; i < c.n; i++)
        for (size_t k = 0; k < c.v[i]->n; k++)
            add_limits(c.v[i], &c.v[i]->set[k], &all);
    if (!all)
        return err_oom(e);
    json_decref(*ret);
    *ret = steal_ptr(&all);
    return 0;
}
