#include "spec/net.h"

#include "net/packet.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DNS_PORT = 53, RULES_TEXT_MAX = 64 * 1024 };

void spec_net_init(struct spec_net *n)
{
    *n = (struct spec_net){
        .max_connections = SPEC_CONNECTIONS_DEFAULT,
        .dns_timeout_ms = DNS_TIMEOUT_MS,
        .bound.on_violation = VIOLATION_LOG,
    };
}

void spec_net_free(struct spec_net *n)
{
    free(n->profile);
    strlist_free(&n->rules);
    free(n->ports);
    spec_proxy_free(&n->proxy);
    spec_bound_free(&n->bound);
    spec_net_init(n);
}

/* --- policy --------------------------------------------------------------------------------- */

int spec_net_set_profile(struct spec_net *n, const char *text, struct err *e)
{
    struct policy p;
    policy_init(&p);
    int r = policy_add_profile(&p, text, e);
    policy_free(&p);
    if (r < 0) {
        err_hint(e, "profiles: public, private, loopback, link-local, meta, multicast, host, "
                    "joined by commas; or all; or none");
        return r;
    }
    char *copy = strdup(text);
    if (!copy)
        return err_oom(e);
    free(n->profile);
    n->profile = copy;
    return 0;
}

int spec_net_add_rules(struct spec_net *n, const char *text, struct err *e)
{
    struct policy p;
    policy_init(&p);
    int r =
        strlen(text) > RULES_TEXT_MAX
            ? err_set(e, E2BIG, "network rules are too long: at most %d bytes in one --net-rule",
                      (int)RULES_TEXT_MAX)
            : policy_add_rules(&p, text, e);
    policy_free(&p);
    if (r < 0)
        return r;
    return strlist_add(&n->rules, text) < 0 ? err_oom(e) : 0;
}

bool spec_net_is_allowlist(const struct spec_net *n)
{
    return !n->off && n->rules.n > 0 && !n->profile && n->egress == NET_DEFAULT_UNSET;
}

int spec_net_policy(const struct spec_net *n, struct policy *p, struct err *e)
{
    int r = 0;
    policy_init(p);
    p->strict = n->strict;
    for (size_t i = 0; r == 0 && i < n->rules.n; i++)
        r = policy_add_rules(p, n->rules.v[i], e);
    const char *profile = n->profile;
    if (!profile && n->rules.n == 0 && n->egress == NET_DEFAULT_UNSET)
        profile = "public";
    if (r == 0 && profile)
        r = policy_add_profile(p, profile, e);
    if (n->egress != NET_DEFAULT_UNSET)
        p->default_egress = n->egress == NET_DEFAULT_ALLOW;
    if (n->ingress != NET_DEFAULT_UNSET)
        p->default_ingress = n->ingress == NET_DEFAULT_ALLOW;
    if (r < 0)
        policy_free(p);
    return r;
}

/* --- name servers --------------------------------------------------------------------------- */

int spec_net_add_nameserver(struct spec_net *n, const char *text, struct err *e)
{
    struct net_end end = {0};
    if (!end_parse(text, DNS_PORT, &end))
        return err_hinted(
            e, err_set(e, EINVAL, "invalid name server '%s'", text),
            "expected IP or IP:PORT, such as 9.9.9.9, 10.0.0.2:5353 or [2620:fe::fe]:53");
    if (n->n_nameservers == DNS_UPSTREAMS_MAX)
        return err_set(e, E2BIG, "at most %d name servers", DNS_UPSTREAMS_MAX);
    n->nameserver[n->n_nameservers++] = end;
    return 0;
}

/* --- ports ---------------------------------------------------------------------------------- */

struct range {
    uint64_t lo, hi;
};

static bool parse_range(char *s, struct range *ret)
{
    char *dash = strchr(s, '-');
    if (dash)
        *dash++ = '\0';
    return parse_u64(s, &ret->lo) == 0 && parse_u64(dash ? dash : s, &ret->hi) == 0 &&
           ret->lo <= ret->hi && ret->hi <= 65535;
}

static int bad_port(struct err *e, const char *text, const char *why)
{
    return err_hinted(e, err_set(e, EINVAL, "invalid port '%s': %s", text, why),
                      "expected [BIND:]HOST:GUEST[/udp], such as 8080:80, 0:80 (any free port), "
                      "0.0.0.0:53:53/udp, [::1]:8080:80 or 8000-8010:8000-8010");
}

/* Cuts "/tcp" or "/udp" off the end. */
static bool split_proto(char *s, uint8_t *proto)
{
    char *slash = strchr(s, '/');
    *proto = PROTO_TCP;
    if (!slash)
        return true;
    *slash++ = '\0';
    if (strcmp(slash, "udp") == 0)
        *proto = PROTO_UDP;
    return strcmp(slash, "udp") == 0 || strcmp(slash, "tcp") == 0;
}

/* Cuts BIND: off the front; *s is the rest. NULL, or what is wrong. */
static const char *split_bind(char **s, struct net_addr *bind)
{
    char *at = *s, *end = NULL;
    if (*at == '[') {
        end = strchr(++at, ']');
        if (!end || end[1] != ':')
            return "an IPv6 address is written [ADDRESS]:HOST:GUEST";
        *end++ = '\0';
    } else {
        char *first = strchr(at, ':'), *last = strrchr(at, ':');
        if (first == last) {
            (void)addr_parse("127.0.0.1", bind);
            return NULL;
        }
        if (strchr(first + 1, ':') != last)
            return "an IPv6 address is written [ADDRESS]:HOST:GUEST";
        end = first;
        *end = '\0';
    }
    *s = end + 1;
    if (addr_parse(at, bind) < 0)
        return "expected an IP address of this host before the ports";
    return NULL;
}

static bool covers(const struct net_addr *a, const struct net_addr *b)
{
    static const struct net_addr any6;
    struct net_addr any4 = addr_from4((const uint8_t[4]){0});
    if (addr_equal(a, b))
        return true;
    return addr_is4(a) == addr_is4(b) && addr_equal(a, addr_is4(a) ? &any4 : &any6);
}

bool spec_port_clashes(const struct spec_port *a, const struct spec_port *b)
{
    return a->host == b->host && a->host != 0 && a->proto == b->proto &&
           (covers(&a->bind, &b->bind) || covers(&b->bind, &a->bind));
}

int spec_net_add_port(struct spec_net *n, const struct spec_port *p, struct err *e)
{
    if (p->guest == 0 || (p->proto != PROTO_TCP && p->proto != PROTO_UDP))
        return err_set(e, EINVAL, "invalid config: a published port needs a guest port");
    for (size_t i = 0; i < n->n_ports; i++) {
        const struct spec_port *o = &n->ports[i];
        char text[SPEC_PORT_TEXT_MAX];
        if (!spec_port_clashes(o, p))
            continue;
        spec_port_format(o, text);
        return err_set(e, EINVAL, "port %u is already published as %s", p->host, text);
    }
    if (n->n_ports == SPEC_PUBLISH_MAX)
        return err_set(e, E2BIG, "at most %d published ports", SPEC_PUBLISH_MAX);
    if (ARRAY_RESIZE(n->ports, n->n_ports + 1) < 0)
        return err_oom(e);
    n->ports[n->n_ports++] = *p;
    return 0;
}

int spec_net_add_ports(struct spec_net *n, const char *text, struct err *e)
{
    struct spec_port p = {0};
    struct range host, guest;
    AUTO_FREE char *copy = strdup(text);
    if (!copy)
        return err_oom(e);
    char *s = copy;
    if (!split_proto(s, &p.proto))
        return bad_port(e, text, "the protocol must be tcp or udp");
    const char *wrong = split_bind(&s, &p.bind);
    if (wrong)
        return bad_port(e, text, wrong);
    char *colon = strchr(s, ':');
    if (!colon)
        return bad_port(e, text, "expected HOST:GUEST");
    *colon = '\0';
    if (!parse_range(s, &host) || !parse_range(colon + 1, &guest) || guest.lo == 0 ||
        (host.lo == 0 && host.hi != 0))
        return bad_port(e, text, "ports are numbers from 1 to 65535; HOST may be 0");
    if (host.lo != 0 && host.hi - host.lo != guest.hi - guest.lo)
        return bad_port(e, text, "both ranges must have the same length");
    size_t before = n->n_ports;
    for (uint64_t i = 0; i <= guest.hi - guest.lo; i++) {
        p.host = host.lo ? (uint16_t)(host.lo + i) : 0;
        p.guest = (uint16_t)(guest.lo + i);
        int r = spec_net_add_port(n, &p, e);
        if (r < 0) {
            n->n_ports = before;
            return r;
        }
    }
    return 0;
}

void spec_port_format(const struct spec_port *p, char out[SPEC_PORT_TEXT_MAX])
{
    char end[END_TEXT_MAX];
    end_format(&(struct net_end){.addr = p->bind, .port = p->host}, end);
    (void)snprintf(out, SPEC_PORT_TEXT_MAX, "%s->%u/%s", end, p->guest,
                   p->proto == PROTO_UDP ? "udp" : "tcp");
}

/* --- all of it ------------------------------------------------------------------------------ */

int spec_net_validate(const struct spec_net *n, struct err *e)
{
    struct policy p;
    if (n->max_connections < 1 || n->max_connections > SPEC_CONNECTIONS_MAX)
        return err_set(e, EINVAL, "invalid config: max connections must be 1 to %d: got %u",
                       SPEC_CONNECTIONS_MAX, n->max_connections);
    if (n->dns_timeout_ms < 1 || n->dns_timeout_ms > SPEC_DNS_TIMEOUT_MAX_MS)
        return err_set(e, EINVAL, "invalid config: DNS query timeout must be 1 to %d ms: got %u",
                       SPEC_DNS_TIMEOUT_MAX_MS, n->dns_timeout_ms);
    if (n->off && n->n_ports > 0) {
        err_set(e, EINVAL, "invalid config: a sandbox without a network cannot publish ports");
        err_hint(e, "use --net none to publish ports but deny outgoing traffic");
        return -EINVAL;
    }
    int r = spec_proxy_validate(&n->proxy, e);
    if (r == 0)
        r = spec_bound_validate(&n->bound, n->off, e);
    if (r == 0)
        r = spec_net_policy(n, &p, e);
    if (r == 0)
        policy_free(&p);
    return r;
}
