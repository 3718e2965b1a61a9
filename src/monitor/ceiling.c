#include "monitor/ceiling.h"

#include "policy/rulebook.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 1024 /* of one text in a refusal */, NAMES_MAX = 1024 };

static const char *const kind_names[LIMIT_KINDS] = {[LIMIT_EGRESS] = "egress",
                                                    [LIMIT_PORTS] = "ports",
                                                    [LIMIT_LIFETIME] = "lifetime",
                                                    [LIMIT_SECRETS] = "secrets"};

static void limit_free(struct limit *l)
{
    policy_free(&l->egress);
    strlist_free(&l->names);
    free(l->field);
    free(l->asked);
    free(l->allowed);
    free(l->origin);
    *l = (struct limit){0};
}
#define AUTO_LIMIT CLEANUP(limit_free)

void ceiling_free(struct ceiling *c)
{
    for (size_t i = 0; i < c->n; i++)
        limit_free(&c->limit[i]);
    c->n = 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int read_words(const json_t *j, const char *key, char **ret)
{
    const char *text = json_string_value(json_object_get(j, key));
    if (!text || strlen(text) > WORDS_MAX)
        return -EINVAL;
    *ret = strdup(text);
    return *ret ? 0 : -ENOMEM;
}

static int read_rules(const json_t *list, struct policy *ret)
{
    size_t i;
    const json_t *x;
    if (!json_is_array(list) || json_array_size(list) > POLICY_RULES_MAX)
        return -EINVAL;
    json_array_foreach(list, i, x)
    {
        const char *text = json_string_value(x);
        int r = text ? policy_add_rules(ret, text, NULL) : -EINVAL;
        if (r < 0)
            return r;
    }
    for (i = 0; i < ret->n; i++)
        if (!ret->rule[i].allow || !(ret->rule[i].dir & POLICY_EGRESS))
            return -EINVAL;
    return 0;
}

static int read_names(const json_t *list, struct strlist *ret)
{
    size_t i;
    const json_t *x;
    if (!json_is_array(list) || json_array_size(list) > NAMES_MAX)
        return -EINVAL;
    json_array_foreach(list, i, x)
    {
        const char *text = json_string_value(x);
        int r = !text || strlen(text) > WORDS_MAX ? -EINVAL : strlist_add(ret, text);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_limit(const json_t *j, struct limit *ret)
{
    const char *kind = json_string_value(json_object_get(j, "kind"));
    const json_t *most = json_object_get(j, "most");
    policy_init(&ret->egress);
    for (ret->kind = 0; ret->kind < LIMIT_KINDS; ret->kind++)
        if (kind && strcmp(kind, kind_names[ret->kind]) == 0)
            break;
    if (ret->kind == LIMIT_KINDS)
        return -EINVAL;
    if (ret->kind == LIMIT_EGRESS || ret->kind == LIMIT_SECRETS) {
        const json_t *list = json_object_get(j, "rules");
        int r = ret->kind == LIMIT_EGRESS ? read_rules(list, &ret->egress)
                                          : read_names(list, &ret->names);
        if (r < 0)
            return r;
    } else if (!json_is_integer(most) || json_integer_value(most) < 0) {
        return -EINVAL;
    } else {
        ret->most = (uint64_t)json_integer_value(most);
    }
    int r = read_words(j, "field", &ret->field);
    if (r == 0)
        r = read_words(j, "allowed", &ret->allowed);
    if (r == 0)
        r = read_words(j, "origin", &ret->origin);
    if (r == 0 && json_object_get(j, "asked"))
        r = read_words(j, "asked", &ret->asked);
    return r;
}

/* Whether a allows nothing that b does not; wildcards are only compared for equality. */
static bool limit_within(const struct limit *a, const struct limit *b)
{
    int rule;
    if (a->kind != b->kind)
        return false;
    for (size_t i = 0; i < a->names.n; i++)
        if (!strlist_has(&b->names, a->names.v[i]))
            return false;
    return a->kind == LIMIT_EGRESS ? policy_within(&a->egress, &b->egress, &rule)
                                   : a->most <= b->most;
}

/* Takes what *l holds. */
static int add_limit(struct ceiling *c, struct limit *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++)
        if (limit_within(&c->limit[i], l))
            return 0;
    for (size_t i = 0; i < c->n; i++)
        if (limit_within(l, &c->limit[i]))
            limit_free(&c->limit[i]);
        else
            c->limit[kept++] = c->limit[i];
    c->n = kept;
    if (c->n == CEILING_LIMITS_MAX)
        return -E2BIG;
    c->limit[c->n++] = *l;
    *l = (struct limit){0};
    return 0;
}

int ceiling_add(struct ceiling *c, const json_t *limits, struct err *e)
{
    size_t i;
    const json_t *j;
    int r = json_is_array(limits) ? 0 : -EINVAL;
    json_array_foreach(limits, i, j)
    {
        AUTO_LIMIT struct limit l = {0};
        r = read_limit(j, &l);
        if (r == 0)
            r = add_limit(c, &l);
        if (r < 0)
            break;
    }
    if (r == -E2BIG)
        return err_set(e, E2BIG, "the policy was tightened too often: start the sandbox again");
    return r < 0 ? err_set(e, -r, "cannot read the policy's limits") : 0;
}

/* --- holding requests to it ------------------------------------------------------------------- */

static int refuse(const struct limit *l, const char *asked, struct err *e)
{
    char text[ERR_MSG_MAX];
    policy_words(l->field, l->asked ? l->asked : asked, l->allowed, l->origin, text, sizeof(text));
    return err_set(e, ERR_POLICY, "refused by policy: %s", text);
}

uint64_t ceiling_most(const struct ceiling *c, enum limit_kind kind)
{
    uint64_t most = UINT64_MAX;
    for (size_t i = 0; i < c->n; i++)
        if (c->limit[i].kind == kind)
            most = MIN(most, c->limit[i].most);
    return most;
}

int ceiling_hold_number(const struct ceiling *c, enum limit_kind kind, uint64_t v, struct err *e)
{
    char asked[64];
    if (kind == LIMIT_LIFETIME)
        format_duration(v, asked, sizeof(asked));
    else
        (void)snprintf(asked, sizeof(asked), "%llu", (unsigned long long)v);
    for (size_t i = 0; i < c->n; i++)
        if (c->limit[i].kind == kind && v > c->limit[i].most)
            return refuse(&c->limit[i], asked, e);
    return 0;
}

int ceiling_hold_secret(const struct ceiling *c, const char *name, struct err *e)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct limit *l = &c->limit[i];
        bool ok = l->kind != LIMIT_SECRETS;
        for (size_t k = 0; !ok && k < l->names.n; k++)
            ok = fnmatch(l->names.v[k], name, FNM_NOESCAPE) == 0;
        if (!ok)
            return refuse(l, name, e);
    }
    return 0;
}

int ceiling_hold_policy(const struct ceiling *c, const struct policy *p, struct err *e)
{
    int rule = -1;
    for (size_t i = 0; i < c->n; i++)
        if (c->limit[i].kind == LIMIT_EGRESS && !policy_within(p, &c->limit[i].egress, &rule))
            return refuse(&c->limit[i], rule < 0 ? "allow@any" : p->rule[rule].text, e);
    return 0;
}

/* Into *ret, which is empty before; lets nothing out if narrowing fails. */
static void narrow_to(const struct policy *p, const struct policy *ceiling, struct policy *ret)
{
    AUTO_STRLIST struct strlist rules = {0};
    int r = policy_narrow(p, ceiling, &rules);
    for (size_t i = 0; r == 0 && i < rules.n; i++)
        r = policy_add_rules(ret, rules.v[i], NULL);
    if (r < 0)
        policy_free(ret);
    ret->default_ingress = p->default_ingress;
    ret->strict = p->strict;
}

int ceiling_narrow(const struct ceiling *c, const struct policy *p, struct policy *ret)
{
    int rule, changed = 0;
    for (size_t i = 0; i < c->n; i++) {
        struct policy now;
        if (c->limit[i].kind != LIMIT_EGRESS ||
            policy_within(changed ? ret : p, &c->limit[i].egress, &rule))
            continue;
        policy_init(&now);
        narrow_to(changed ? ret : p, &c->limit[i].egress, &now);
        if (changed)
            policy_free(ret);
        *ret = now;
        changed = 1;
    }
    return changed;
}
