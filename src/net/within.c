/* Whether one policy allows nothing that another does not: see policy.h. */
#include "net/policy.h"

#include <string.h>

/* A name leads to public addresses only, and never to the host. Addresses are not looked up in
 * groups: a group excludes the host's own addresses, which an address may be. */
static bool target_within(const struct policy_rule *a, const struct policy_rule *c)
{
    bool named = a->kind == TARGET_DOMAIN || a->kind == TARGET_SUFFIX;
    switch (c->kind) {
    case TARGET_ANY:
        return true;
    case TARGET_GROUP:
        if (c->group == CLASS_PUBLIC && (named || a->kind == TARGET_DNS))
            return true;
        return a->kind == TARGET_GROUP && a->group == c->group;
    case TARGET_CIDR:
        return a->kind == TARGET_CIDR && a->bits >= c->bits &&
               addr_in_network(&a->addr, &c->addr, c->bits);
    case TARGET_SUFFIX:
        return named && policy_name_matches(a->name, c->name, true);
    case TARGET_DOMAIN:
        return a->kind == TARGET_DOMAIN && strcmp(a->name, c->name) == 0;
    case TARGET_HOST:
    case TARGET_DNS:
        return a->kind == c->kind;
    }
    return false;
}

static bool rule_within(const struct policy_rule *a, const struct policy_rule *c)
{
    return (c->proto == 0 || a->proto == c->proto) && a->lo >= c->lo && a->hi <= c->hi &&
           target_within(a, c);
}

static bool lets_out(const struct policy_rule *r)
{
    return r->allow && (r->dir & POLICY_EGRESS);
}

static const struct policy_rule anything = {
    .allow = true, .dir = POLICY_EGRESS, .kind = TARGET_ANY, .hi = 65535};

static bool within_any(const struct policy_rule *r, const struct policy *ceiling)
{
    for (size_t i = 0; i < ceiling->n; i++)
        if (rule_within(r, &ceiling->rule[i]))
            return true;
    return false;
}

bool policy_within(const struct policy *p, const struct policy *ceiling, int *rule)
{
    for (size_t i = 0; i < p->n; i++)
        if (lets_out(&p->rule[i]) && !within_any(&p->rule[i], ceiling)) {
            *rule = (int)i;
            return false;
        }
    *rule = -1;
    return !p->default_egress || within_any(&anything, ceiling);
}

/* What both allow: the narrower rule of each pair in which one is within the other. */
static int add_common(struct strlist *to, const struct policy_rule *r, const struct policy *ceiling)
{
    if (r->text && within_any(r, ceiling))
        return strlist_has(to, r->text) ? 0 : strlist_add(to, r->text);
    int x = 0;
    for (size_t i = 0; x == 0 && i < ceiling->n; i++)
        if (rule_within(&ceiling->rule[i], r) && !strlist_has(to, ceiling->rule[i].text))
            x = strlist_add(to, ceiling->rule[i].text);
    return x;
}

int policy_narrow(const struct policy *p, const struct policy *ceiling, struct strlist *rules)
{
    int x = 0;
    for (size_t i = 0; x == 0 && i < p->n; i++)
        x = lets_out(&p->rule[i]) ? add_common(rules, &p->rule[i], ceiling)
                                  : strlist_add(rules, p->rule[i].text);
    return x == 0 && p->default_egress ? add_common(rules, &anything, ceiling) : x;
}
