/* The grammar of rules and profiles: see policy.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "net/packet.h"
#include "net/policy.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/text.h"

enum { RULE_TEXT_MAX = 320 };

struct word {
    const char *name;
    int value;
};

enum { GROUP_ANY = 100, GROUP_HOST, GROUP_DNS };

static const struct word groups[] = {
    {"public", CLASS_PUBLIC},     {"private", CLASS_PRIVATE},
    {"loopback", CLASS_LOOPBACK}, {"link-local", CLASS_LINK_LOCAL},
    {"meta", CLASS_META},         {"multicast", CLASS_MULTICAST},
    {"host", GROUP_HOST},         {"any", GROUP_ANY},
    {"dns", GROUP_DNS},
};
static const struct word actions[] = {{"allow", 1}, {"deny", 0}};
static const struct word directions[] = {
    {"egress", POLICY_EGRESS}, {"ingress", POLICY_INGRESS}, {"any", POLICY_BOTH}};
static const struct word protos[] = {{"tcp", PROTO_TCP},
                                     {"udp", PROTO_UDP},
                                     {"icmpv4", PROTO_ICMP},
                                     {"icmpv6", PROTO_ICMP6},
                                     {"any", 0}};
enum { PROFILE_ALL = 200, PROFILE_NONE };
static const struct word profiles[] = {
    {"public", CLASS_PUBLIC},     {"private", CLASS_PRIVATE},
    {"loopback", CLASS_LOOPBACK}, {"link-local", CLASS_LINK_LOCAL},
    {"meta", CLASS_META},         {"multicast", CLASS_MULTICAST},
    {"host", GROUP_HOST},         {"all", PROFILE_ALL},
    {"none", PROFILE_NONE},
};

/* The value of a word, or -1. */
static int find_word(const struct word *w, size_t n, const char *s)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(w[i].name, s) == 0)
            return w[i].value;
    return -1;
}

static void hint_word(struct err *e, const struct word *w, size_t n, const char *s)
{
    unsigned best = TEXT_FAR;
    const char *name = NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned d = word_unlikeness(s, w[i].name);
        if (d < best) {
            best = d;
            name = w[i].name;
        }
    }
    if (name)
        err_hint(e, "did you mean '%s'?", name);
}

/* The value of a word, or -EINVAL with an error that names the choices. */
static int parse_word(const struct word *w, size_t n, const char *what, const char *choices,
                      const char *s, struct err *e)
{
    int value = find_word(w, n, s);
    if (value >= 0)
        return value;
    err_set(e, EINVAL, "unknown %s '%s': expected %s", what, s, choices);
    hint_word(e, w, n, s);
    return -EINVAL;
}

#define PARSE(table, what, choices, s, e) parse_word(table, ARRAY_LEN(table), what, choices, s, e)

/* --- parts of a rule ------------------------------------------------------------------------- */

static int parse_head(struct policy_rule *r, char *head, struct err *e)
{
    char *colon = strchr(head, ':');
    if (colon)
        *colon++ = '\0';
    int action = PARSE(actions, "action", "allow or deny", head, e);
    if (action < 0)
        return action;
    r->allow = action;
    r->dir = POLICY_EGRESS;
    if (!colon)
        return 0;
    int dir = PARSE(directions, "direction", "egress, ingress or any", colon, e);
    if (dir < 0)
        return dir;
    r->dir = (uint8_t)dir;
    return 0;
}

static int parse_ports(struct policy_rule *r, char *s, struct err *e)
{
    uint64_t lo, hi;
    r->lo = 0;
    r->hi = 65535;
    if (strcmp(s, "any") == 0)
        return 0;
    if (r->proto == PROTO_ICMP || r->proto == PROTO_ICMP6)
        return err_set(e, EINVAL, "ICMP has no ports: '%s'", s);
    char *dash = strchr(s, '-');
    if (dash)
        *dash++ = '\0';
    if (parse_u64(s, &lo) < 0 || parse_u64(dash ? dash : s, &hi) < 0 || lo < 1 || hi > 65535 ||
        lo > hi)
        return err_set(e, EINVAL, "invalid port '%s%s%s': expected a port, a range or any", s,
                       dash ? "-" : "", dash ? dash : "");
    r->lo = (uint16_t)lo;
    r->hi = (uint16_t)hi;
    return 0;
}

static int parse_proto(struct policy_rule *r, char *s, struct err *e)
{
    char *colon = strchr(s, ':');
    if (colon)
        *colon++ = '\0';
    int proto = PARSE(protos, "protocol", "tcp, udp, icmpv4, icmpv6 or any", s, e);
    if (proto < 0)
        return proto;
    r->proto = (uint8_t)proto;
    return colon ? parse_ports(r, colon, e) : 0;
}

/* ADDRESS or ADDRESS/BITS: 1; -errno: a bad one; 0: something else. */
static int parse_cidr(struct policy_rule *r, char *s, struct err *e)
{
    uint64_t bits;
    char *slash = strchr(s, '/');
    if (slash)
        *slash = '\0';
    if (addr_parse(s, &r->addr) < 0) {
        if (!slash)
            return 0;
        return err_set(e, EINVAL, "invalid IP address '%s'", s);
    }
    bool v4 = addr_is4(&r->addr);
    unsigned max = v4 ? 32 : 128;
    bits = max;
    if (slash && (parse_u64(slash + 1, &bits) < 0 || bits > max))
        return err_set(e, EINVAL, "invalid prefix length '/%s' for %s", slash + 1, s);
    r->kind = TARGET_CIDR;
    r->bits = (uint8_t)(bits + (v4 ? 96 : 0));
    return 1;
}

static int parse_domain(struct policy_rule *r, const char *name, bool suffix, struct err *e)
{
    r->kind = suffix ? TARGET_SUFFIX : TARGET_DOMAIN;
    if (!policy_name_normal(name, r->name))
        return err_set(e, EINVAL, "invalid host name '%s'", name);
    if (suffix && !strchr(r->name, '.'))
        return err_hinted(
            e, err_set(e, EINVAL, "'*.%s' is too wide: a suffix has at least two labels", name),
            "name the domains, or allow the group 'public'");
    return 0;
}

static int parse_target(struct policy_rule *r, char *s, struct err *e)
{
    int r1 = find_word(groups, ARRAY_LEN(groups), s);
    if (r1 >= 0) {
        r->kind = r1 == GROUP_ANY    ? TARGET_ANY
                  : r1 == GROUP_HOST ? TARGET_HOST
                  : r1 == GROUP_DNS  ? TARGET_DNS
                                     : TARGET_GROUP;
        r->group = r->kind == TARGET_GROUP ? (enum addr_class)r1 : CLASS_PUBLIC;
        return 0;
    }
    if (strncmp(s, "domain=", 7) == 0)
        return parse_domain(r, s + 7, false, e);
    if (strncmp(s, "suffix=", 7) == 0)
        return parse_domain(r, s + 7, true, e);
    if (strncmp(s, "*.", 2) == 0)
        return parse_domain(r, s + 2, true, e);
    r1 = parse_cidr(r, s, e);
    if (r1 != 0)
        return r1 < 0 ? r1 : 0;
    if (!strchr(s, '.')) {
        int code = err_set(e, EINVAL, "unknown target '%s'", s);
        hint_word(e, groups, ARRAY_LEN(groups), s);
        err_hint(e, "write domain=%s for a host name without a dot", s);
        return code;
    }
    const char *last = strrchr(s, '.') + 1;
    if (strspn(last, "0123456789") == strlen(last) && *last)
        return err_set(e, EINVAL, "invalid IP address '%s'", s); /* and no host name either */
    return parse_domain(r, s, false, e);
}

/* [ADDRESS] or [ADDRESS]/BITS, then optionally :PROTO; brackets keep the colons of IPv6
 * together. */
static int parse_bracketed(struct policy_rule *r, char *s, struct err *e)
{
    char cidr[64], *close = strchr(s, ']');
    if (!close)
        return err_set(e, EINVAL, "'%s' has no closing bracket", s);
    char *rest = close + 1;
    size_t bits = *rest == '/' ? strcspn(rest, ":") : 0;
    if (rest[bits] != '\0' && rest[bits] != ':')
        return err_set(e, EINVAL, "unexpected '%s' after a bracket", rest);
    int len =
        snprintf(cidr, sizeof(cidr), "%.*s%.*s", (int)(close - s - 1), s + 1, (int)bits, rest);
    int r1 = len < (int)sizeof(cidr) ? parse_cidr(r, cidr, e) : 0;
    if (r1 <= 0)
        return r1 < 0 ? r1 : err_set(e, EINVAL, "invalid IP address '%s'", cidr);
    return rest[bits] == ':' ? parse_proto(r, rest + bits + 1, e) : 0;
}

/* Splits TARGET from what follows. */
static int parse_tail(struct policy_rule *r, char *s, struct err *e)
{
    if (*s == '[')
        return parse_bracketed(r, s, e);
    char *rest = strchr(s, ':');
    if (rest && strchr(rest + 1, ':') && addr_parse(s, &r->addr) == 0)
        return err_set(e, EINVAL, "an IPv6 address needs brackets: [%s]", s);
    if (rest)
        *rest++ = '\0';
    int r1 = parse_target(r, s, e);
    return r1 < 0 || !rest ? r1 : parse_proto(r, rest, e);
}

static int parse_rule(struct policy_rule *r, const char *text, struct err *e)
{
    char copy[RULE_TEXT_MAX];
    *r = (struct policy_rule){.hi = 65535};
    if (strlen(text) >= sizeof(copy))
        return err_set(e, EINVAL, "a network rule is too long");
    (void)snprintf(copy, sizeof(copy), "%s", text);
    char *at = strchr(copy, '@');
    if (!at)
        return err_hinted(
            e, err_set(e, EINVAL, "network rule '%s' has no '@'", text),
            "expected allow@TARGET or deny@TARGET, such as allow@example.com:tcp:443");
    *at = '\0';
    int k = parse_head(r, copy, e);
    if (k == 0)
        k = parse_tail(r, at + 1, e);
    if (k == 0 && (r->kind == TARGET_DOMAIN || r->kind == TARGET_SUFFIX || r->kind == TARGET_DNS) &&
        r->dir != POLICY_EGRESS)
        k = err_set(e, EINVAL, "names are for egress only; ingress rules take addresses");
    if (k == 0 && r->kind == TARGET_CIDR && r->proto != 0) {
        bool v4 = r->bits >= 96 && addr_is4(&r->addr);
        if (r->proto == (v4 ? PROTO_ICMP6 : PROTO_ICMP))
            k = err_set(e, EINVAL, "%s does not apply to an %s address", v4 ? "icmpv6" : "icmpv4",
                        v4 ? "IPv4" : "IPv6");
    }
    if (k < 0)
        return err_wrap(e, k, "network rule '%s'", text);
    r->text = strdup(text);
    return r->text ? 0 : err_oom(e);
}

static int append_rule(struct policy *p, const struct policy_rule *r, struct err *e)
{
    if (p->n == POLICY_RULES_MAX)
        return err_set(e, E2BIG, "too many network rules: at most %d", POLICY_RULES_MAX);
    if (ARRAY_RESIZE(p->rule, p->n + 1) < 0)
        return err_oom(e);
    p->rule[p->n++] = *r;
    return 0;
}

static void cut_back(struct policy *p, size_t n)
{
    while (p->n > n)
        free(p->rule[--p->n].text);
}

/* Calls one(p, item) for each item of a comma-separated list. */
static int each_item(struct policy *p, const char *text, struct err *e,
                     int (*one)(struct policy *p, const char *item, struct err *e))
{
    size_t before = p->n;
    AUTO_FREE char *copy = strdup(text);
    if (!copy)
        return err_oom(e);
    for (char *item = copy, *comma; item; item = comma) {
        comma = strchr(item, ',');
        if (comma)
            *comma++ = '\0';
        int r = one(p, item, e);
        if (r < 0) {
            cut_back(p, before);
            return r;
        }
    }
    return 0;
}

static int add_rule(struct policy *p, const char *item, struct err *e)
{
    struct policy_rule r;
    int k = parse_rule(&r, item, e);
    if (k < 0)
        return k;
    k = append_rule(p, &r, e);
    if (k < 0)
        free(r.text);
    return k;
}

int policy_add_rules(struct policy *p, const char *text, struct err *e)
{
    return each_item(p, text, e, add_rule);
}

static int add_profile(struct policy *p, const char *item, struct err *e)
{
    int group =
        PARSE(profiles, "network profile",
              "all, none, public, private, loopback, link-local, meta, multicast or host", item, e);
    if (group < 0)
        return group;
    if (group == PROFILE_NONE)
        return 0;
    char rule[64];
    (void)snprintf(rule, sizeof(rule), "allow@%s", group == PROFILE_ALL ? "any" : item);
    return add_rule(p, rule, e);
}

int policy_add_profile(struct policy *p, const char *text, struct err *e)
{
    bool list = strchr(text, ',') != NULL;
    if (list && (strstr(text, "all") || strstr(text, "none"))) {
        /* Only whole words count; none of the others contains these. */
        return err_set(e, EINVAL, "network profile '%s': 'all' and 'none' cannot be combined",
                       text);
    }
    return each_item(p, text, e, add_profile);
}
