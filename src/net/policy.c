#include "net/policy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "net/packet.h"

void policy_init(struct policy *p)
{
    *p = (struct policy){.default_ingress = true}; /* only published ports reach the guest anyway */
}

void policy_free(struct policy *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->rule[i].text);
    free(p->rule);
    policy_init(p);
}

/* --- names ----------------------------------------------------------------------------------- */

bool policy_name_normal(const char *s, char out[POLICY_NAME_MAX])
{
    size_t n = strlen(s), label = 0;
    if (n > 0 && s[n - 1] == '.')
        n--;
    if (n == 0 || n >= POLICY_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '.') {
            if (label == 0 || s[i - 1] == '-')
                return false;
            label = 0;
        } else if (isalnum(c) || c == '_' || (c == '-' && label > 0)) {
            if (++label > 63)
                return false;
        } else {
            return false;
        }
        out[i] = (char)tolower(c);
    }
    out[n] = '\0';
    return label > 0 && out[n - 1] != '-';
}

bool policy_name_matches(const char *name, const char *want, bool suffix)
{
    size_t n = strlen(name), w = strlen(want);
    if (n == w)
        return strcmp(name, want) == 0;
    return suffix && n > w && name[n - w - 1] == '.' && strcmp(name + n - w, want) == 0;
}

/* --- decisions ------------------------------------------------------------------------------- */

static bool has_name(const struct policy_rule *r)
{
    return r->kind == TARGET_DOMAIN || r->kind == TARGET_SUFFIX;
}

/* An IPv6 address that leads to a denied IPv4 address is denied, too; but only what was written is
 * allowed. */
static bool cidr_matches(const struct policy_rule *r, const struct net_addr *peer)
{
    struct net_addr inner[ADDR_INNER_MAX];
    if (addr_in_network(peer, &r->addr, r->bits))
        return true;
    for (unsigned i = 0, n = r->allow ? 0 : addr_inner4(peer, inner); i < n; i++)
        if (addr_in_network(&inner[i], &r->addr, r->bits))
            return true;
    return false;
}

static bool name_matches(const struct policy_rule *r, const struct policy_flow *f)
{
    bool suffix = r->kind == TARGET_SUFFIX;
    if (f->host || (r->allow && addr_classify(&f->peer) != CLASS_PUBLIC))
        return false;
    if (!r->allow && f->shown && policy_name_matches(f->shown, r->name, suffix))
        return true;
    return f->named && f->named(f->ctx, &f->peer, suffix, r->name);
}

static bool target_matches(const struct policy_rule *r, const struct policy_flow *f)
{
    switch (r->kind) {
    case TARGET_ANY:
        return true;
    case TARGET_DNS:
        return f->dns;
    case TARGET_HOST:
        return f->host && !f->dns;
    case TARGET_CIDR:
        return !(r->allow && f->gateway) && cidr_matches(r, &f->peer);
    case TARGET_GROUP: /* the gateway's own address represents the host, not its class */
        return !f->host && addr_classify(&f->peer) == r->group;
    case TARGET_DOMAIN:
    case TARGET_SUFFIX:
        return name_matches(r, f);
    }
    return false;
}

/* Whether the rule concerns such flows at all. */
static bool rule_covers(const struct policy_rule *r, const struct policy_flow *f)
{
    bool ports = f->proto == PROTO_TCP || f->proto == PROTO_UDP;
    if (!(r->dir & f->dir) || (r->proto != 0 && r->proto != f->proto))
        return false;
    return ports ? f->port >= r->lo && f->port <= r->hi : r->lo == 0 && r->hi == 65535;
}

struct policy_answer policy_decide(const struct policy *p, const struct policy_flow *f)
{
    bool allow = f->dir == POLICY_EGRESS ? p->default_egress : p->default_ingress;
    struct policy_answer a = {.allow = allow, .rule = -1};
    for (size_t i = 0; i < p->n; i++) {
        const struct policy_rule *r = &p->rule[i];
        if (!rule_covers(r, f))
            continue;
        if (!target_matches(r, f)) {
            a.watch = a.watch || (has_name(r) && !r->allow && !f->host);
            continue;
        }
        if (p->strict && r->allow && has_name(r) && r->proto == 0 && f->proto != PROTO_TCP) {
            a.too_strict = true;
            continue;
        }
        a.allow = r->allow;
        a.rule = (int)i;
        a.by_name = r->allow && has_name(r);
        a.proto_named = r->proto != 0;
        break;
    }
    a.watch = a.watch && a.allow;
    a.too_strict = a.too_strict && !a.allow;
    return a;
}

/* Whether the rule opens addresses that any name may lead to, so that names may be looked up.
 * Individually listed addresses do not, or else questions could carry anything to anyone. */
static bool opens_names(const struct policy_rule *r)
{
    return r->kind == TARGET_ANY || (r->kind == TARGET_GROUP && r->group == CLASS_PUBLIC);
}

struct policy_answer policy_decide_name(const struct policy *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct policy_rule *r = &p->rule[i];
        bool whole = r->proto == 0 && r->lo == 0 && r->hi == 65535;
        if (!(r->dir & POLICY_EGRESS))
            continue;
        if (has_name(r) && policy_name_matches(name, r->name, r->kind == TARGET_SUFFIX)) {
            if (!r->allow && !whole)
                continue; /* some of it is left */
            return (struct policy_answer){.allow = r->allow, .rule = (int)i, .by_name = true};
        }
        if ((r->kind == TARGET_DNS && !r->allow) ||
            (opens_names(r) && (r->allow || (r->kind == TARGET_ANY && whole))))
            return (struct policy_answer){.allow = r->allow, .rule = (int)i};
    }
    return (struct policy_answer){.allow = p->default_egress, .rule = -1};
}

bool policy_names_address(const struct policy *p, const struct net_addr *a)
{
    enum addr_class class = addr_classify(a);
    for (size_t i = 0; i < p->n; i++) {
        const struct policy_rule *r = &p->rule[i];
        bool match = (r->kind == TARGET_CIDR && addr_in_network(a, &r->addr, r->bits)) ||
                     (r->kind == TARGET_GROUP && r->group == class);
        if (match && (r->dir & POLICY_EGRESS))
            return r->allow;
    }
    return false;
}

void policy_explain(const struct policy *p, const struct policy_answer *a, char out[POLICY_WHY_MAX])
{
    const char *verb = a->allow ? "allowed" : "denied";
    if (a->too_strict)
        (void)snprintf(
            out, POLICY_WHY_MAX,
            "denied: with --net-strict a name opens only TCP, unless its rule says which "
            "protocol, such as allow@NAME:udp");
    else if (a->rule >= 0 && (size_t)a->rule < p->n)
        (void)snprintf(out, POLICY_WHY_MAX, "%s by rule %d: %s", verb, a->rule + 1,
                       p->rule[a->rule].text);
    else
        (void)snprintf(out, POLICY_WHY_MAX, "%s: no rule %s it", verb,
                       a->allow ? "denies" : "allows");
}
