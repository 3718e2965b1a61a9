#include "net/explain.h"

#include "net/dns.h"
#include "net/packet.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>

enum { PORT_DEFAULT = 443, PORT_QUIC = 443, TEXT_MAX = 2048 };

static const struct {
    const char *scheme;
    uint16_t port;
} schemes[] = {
    {"http", 80}, {"https", 443}, {"ws", 80},     {"wss", 443},  {"ftp", 21},
    {"ssh", 22},  {"git", 9418},  {"rsync", 873}, {"ldap", 389}, {"ldaps", 636},
};

const char *explain_refusal(const struct policy_answer *a, uint8_t proto, uint16_t port)
{
    if (!a->allow || proto != PROTO_UDP || port != PORT_QUIC)
        return NULL;
    if (a->by_name)
        return "denied: a name does not open UDP port 443, because QUIC hides the name";
    if (a->watch && !a->proto_named)
        return "denied: a rule denies a name, and QUIC (UDP port 443) hides the name";
    return NULL;
}

/* --- what was asked ------------------------------------------------------------------------- */

static int bad_target(const char *text, const char *why, struct err *e)
{
    return err_hinted(e, err_set(e, EINVAL, "invalid target '%s': %s", text, why),
                      "expected a URL, HOST[:PORT], ADDRESS[:PORT] or [IPV6]:PORT");
}

/* Removes "scheme://": its default port, 0 without a scheme, or -EINVAL for an unknown one. */
static int take_scheme(char **at)
{
    char *sep = strstr(*at, "://");
    if (!sep)
        return 0;
    *sep = '\0';
    for (char *c = *at; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    int port = -EINVAL;
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (strcmp(*at, schemes[i].scheme) == 0)
            port = schemes[i].port;
    *at = sep + 3;
    (*at)[strcspn(*at, "/?#")] = '\0';
    char *user = strrchr(*at, '@');
    if (user)
        *at = user + 1;
    return port;
}

/* Splits "HOST:PORT", "[V6]:PORT"; a bare IPv6 address has no port. NULL = no port given. */
static bool split_port(char *host, char **ret_host, const char **ret_port)
{
    *ret_host = host;
    *ret_port = NULL;
    if (host[0] == '[') {
        char *end = strchr(host, ']');
        if (!end || (end[1] != '\0' && end[1] != ':'))
            return false;
        *ret_port = end[1] ? end + 2 : NULL;
        *end = '\0';
        *ret_host = host + 1;
        return strchr(*ret_host, ':') != NULL;
    }
    char *colon = strchr(host, ':');
    if (colon && colon == strrchr(host, ':')) {
        *colon = '\0';
        *ret_port = colon + 1;
    }
    return true;
}

int explain_parse(const char *text, bool udp, struct explain_target *ret, struct err *e)
{
    char copy[TEXT_MAX], *at = copy, *host;
    const char *port;
    struct explain_target t = {.proto = udp ? PROTO_UDP : PROTO_TCP};
    if (strlen(text) >= sizeof(copy))
        return err_set(e, EINVAL, "the target is too long");
    (void)snprintf(copy, sizeof(copy), "%s", text);
    int scheme_port = take_scheme(&at);
    if (!split_port(at, &host, &port))
        return bad_target(text, "the brackets must hold an IPv6 address", e);
    uint64_t number = scheme_port > 0 ? (uint64_t)scheme_port : PORT_DEFAULT;
    if (port && (parse_u64(port, &number) < 0 || number == 0 || number > UINT16_MAX))
        return bad_target(text, "the port must be a number from 1 to 65535", e);
    if (!port && scheme_port < 0)
        return bad_target(text, "the scheme has no default port, so give one", e);
    t.port = (uint16_t)number;
    bool is_address = addr_parse(host, &t.addr) == 0;
    if (!is_address && (strchr(host, ':') || !policy_name_normal(host, t.name)))
        return bad_target(text, "expected a host name or an address", e);
    size_t label = strlen(t.name);
    while (label && isdigit((unsigned char)t.name[label - 1]))
        label--;
    if (!is_address && (label == 0 || t.name[label - 1] == '.') && t.name[label])
        return bad_target(text, "it looks like an address but is not one", e);
    *ret = t;
    return 0;
}

/* --- what a policy says --------------------------------------------------------------------- */

static bool is_that_name(void *ctx, const struct net_addr *peer, bool suffix, const char *want)
{
    return policy_name_matches(ctx, want, suffix);
}

/* A public address that no rule lists, if there is one. */
static struct net_addr some_public_address(const struct policy *p)
{
    static const char *const candidates[] = {"9.9.9.9", "93.184.215.14", "151.101.1.1",
                                             "185.15.59.224", "2620:fe::fe"};
    struct net_addr a = {0};
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        bool listed = false;
        (void)addr_parse(candidates[i], &a);
        for (size_t k = 0; k < p->n && !listed; k++)
            listed = p->rule[k].kind == TARGET_CIDR &&
                     addr_in_network(&a, &p->rule[k].addr, p->rule[k].bits);
        if (!listed)
            break;
    }
    return a;
}

void explain_by_policy(const struct policy *p, const struct explain_target *t,
                       struct explain_answer *ret)
{
    bool host = strcmp(t->name, DNS_HOST_NAME) == 0;
    struct explain_target named = *t;
    struct policy_flow f = {.dir = POLICY_EGRESS,
                            .proto = t->proto,
                            .port = t->port,
                            .peer = t->name[0] ? some_public_address(p) : t->addr,
                            .host = host,
                            .gateway = host,
                            .named = t->name[0] ? is_that_name : NULL,
                            .ctx = named.name};
    *ret = (struct explain_answer){.is_name = t->name[0] != '\0', .may_ask = host};
    if (host)
        (void)snprintf(ret->ask_why, sizeof(ret->ask_why), "allowed: this name is the host");
    if (ret->is_name && !host) {
        struct policy_answer ask = policy_decide_name(p, t->name);
        ret->may_ask = ask.allow;
        policy_explain(p, &ask, ret->ask_why);
    }
    if (ret->is_name && !ret->may_ask) {
        (void)snprintf(ret->why, sizeof(ret->why), "%s", ret->ask_why);
        return;
    }
    struct policy_answer a = policy_decide(p, &f);
    const char *refusal = explain_refusal(&a, t->proto, t->port);
    ret->allow = a.allow && !refusal;
    if (refusal)
        (void)snprintf(ret->why, sizeof(ret->why), "%s", refusal);
    else
        policy_explain(p, &a, ret->why);
}

void explain_with_proxy(const struct explain_target *t, struct explain_answer *a)
{
    bool host = strcmp(t->name, DNS_HOST_NAME) == 0; /* which is reached without it */
    if (!a->allow || t->proto == PROTO_TCP || host)
        return;
    a->allow = false;
    (void)snprintf(a->why, sizeof(a->why), "%s", EXPLAIN_PROXY);
}
