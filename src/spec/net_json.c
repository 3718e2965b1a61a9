/* "network" in spec.json and in `inspect --format json`. */
#include "net/packet.h"
#include "spec/net.h"
#include "spec/read.h"
#include "util/cleanup.h"
#include "util/json.h"

/* --- writing -------------------------------------------------------------------------------- */

json_t *spec_port_to_json(const struct spec_port *p)
{
    char bind[ADDR_TEXT_MAX];
    addr_format(&p->bind, bind);
    return json_pack("{s:s, s:i, s:i, s:s}", "host_bind", bind, "host_port", (int)p->host,
                     "guest_port", (int)p->guest, "protocol",
                     p->proto == PROTO_UDP ? "udp" : "tcp");
}

static json_t *ports_json(const struct spec_net *n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n->n_ports; i++)
        json_add(&a, spec_port_to_json(&n->ports[i]));
    return a;
}

static json_t *nameservers_json(const struct spec_net *n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n->n_nameservers; i++) {
        char text[END_TEXT_MAX];
        end_format(&n->nameserver[i], text);
        json_add(&a, json_string(text));
    }
    return a;
}

static const char *const default_names[] = {
    [NET_DEFAULT_ALLOW] = "allow",
    [NET_DEFAULT_DENY] = "deny",
};

/* With defaults filled in: a reader need not know the rules for omitted settings. */
static json_t *policy_json(const struct spec_net *n)
{
    bool said = n->profile || n->rules.n > 0 || n->egress != NET_DEFAULT_UNSET || n->off;
    const char *profile = said ? n->profile : "public";
    enum net_default ingress = n->ingress;
    if (ingress == NET_DEFAULT_UNSET)
        ingress = n->off ? NET_DEFAULT_DENY : NET_DEFAULT_ALLOW;
    return json_pack(
        "{s:s, s:s, s:s?, s:o}", "default_egress",
        default_names[n->egress == NET_DEFAULT_ALLOW ? NET_DEFAULT_ALLOW : NET_DEFAULT_DENY],
        "default_ingress", default_names[ingress], "profile", profile, "rules",
        json_list(n->rules.v));
}

static json_t *limits_json(const struct spec_net *n)
{
    AUTO_JSON json_t *out = spec_rate_to_json(&n->egress_rate);
    AUTO_JSON json_t *in = spec_rate_to_json(&n->ingress_rate);
    if (json_is_null(out) && json_is_null(in))
        return json_null();
    json_t *o = json_object();
    if (!json_is_null(out))
        json_put(&o, "egress", json_incref(out));
    if (!json_is_null(in))
        json_put(&o, "ingress", json_incref(in));
    return o;
}

/* {} without one. */
static json_t *pools_json(const struct spec_net *n)
{
    const struct addr_pool *pools[] = {&n->pool4, &n->pool6};
    static const char *const keys[] = {"ipv4_pool", "ipv6_pool"};
    json_t *o = json_object();
    for (size_t i = 0; i < ARRAY_LEN(pools); i++) {
        char text[POOL_TEXT_MAX];
        if (pools[i]->bits == 0)
            continue;
        spec_pool_format(pools[i], text);
        json_put(&o, keys[i], json_string(text));
    }
    return o;
}

static json_t *full_json(const struct spec_net *n)
{
    json_t *tls = json_pack(
        "{s:b, s:o, s:{s:i, s:i}, s:b, s:o, s:{s:s?, s:s?}, s:o, s:[], s:o, s:o, s:b}",
        "block_quic_on_intercept", !n->bound.quic, "bypass", json_list(n->bound.bypass.v), "cache",
        "capacity", 256, "validity_hours", 12, "enabled", spec_bound_any(&n->bound), "intercept",
        json_list(n->bound.intercept.v), "intercept_ca", "cert_path", n->bound.ca_cert, "key_path",
        n->bound.ca_key, "intercepted_ports", spec_bound_ports_json(&n->bound),
        "scoped_upstream_ca_cert", "scoped_verify_upstream", spec_bound_no_verify_json(&n->bound),
        "upstream_ca_cert", json_list(n->bound.cas.v), "verify_upstream", 1);
    return json_pack("{s:{s:o, s:I, s:b}, s:b, s:o, s:I, s:o, s:o, s:o, s:b, s:o, s:b, s:o, s:o}",
                     "dns", "nameservers", nameservers_json(n), "query_timeout_ms",
                     (json_int_t)n->dns_timeout_ms, "rebind_protection", !n->allow_rebind,
                     "enabled", !n->off, "interface", pools_json(n), "max_connections",
                     (json_int_t)n->max_connections, "policy", policy_json(n), "ports",
                     ports_json(n), "secrets", spec_bound_secrets_json(&n->bound), "strict",
                     n->strict, "tls", tls, "trust_host_cas", n->trust_host_cas, "proxy",
                     spec_proxy_to_json(&n->proxy), "rate_limits", limits_json(n));
}

/* A member, unless it is the default. */
static void put_unless(json_t **o, const char *key, json_t *v, bool usual)
{
    if (usual)
        json_decref(v);
    else
        json_put(o, key, v);
}

static json_t *short_json(const struct spec_net *n)
{
    json_t *o = json_object(), *dns = json_object();
    bool said = n->profile || n->rules.n > 0 || n->egress != NET_DEFAULT_UNSET ||
                n->ingress != NET_DEFAULT_UNSET;
    put_unless(&dns, "nameservers", nameservers_json(n), n->n_nameservers == 0);
    put_unless(&dns, "query_timeout_ms", json_integer(n->dns_timeout_ms),
               n->dns_timeout_ms == DNS_TIMEOUT_MS);
    put_unless(&dns, "rebind_protection", json_false(), !n->allow_rebind);
    put_unless(&o, "dns", dns, dns && json_object_size(dns) == 0);
    put_unless(&o, "enabled", json_false(), !n->off);
    put_unless(&o, "max_connections", json_integer(n->max_connections),
               n->max_connections == SPEC_CONNECTIONS_DEFAULT);
    put_unless(&o, "policy", policy_json(n), !said);
    put_unless(&o, "ports", ports_json(n), n->n_ports == 0);
    put_unless(&o, "strict", json_true(), !n->strict);
    put_unless(&o, "trust_host_cas", json_true(), !n->trust_host_cas);
    put_unless(&o, "proxy", spec_proxy_to_json(&n->proxy), n->proxy.version == 0);
    const struct spec_bound *b = &n->bound;
    json_t *tls = json_object();
    put_unless(&tls, "intercept", json_list(b->intercept.v), b->intercept.n == 0);
    put_unless(&tls, "bypass", json_list(b->bypass.v), b->bypass.n == 0);
    put_unless(&tls, "intercepted_ports", spec_bound_ports_json(b), b->n_ports == 0);
    put_unless(&tls, "intercept_ca",
               json_pack("{s:s?, s:s?}", "cert_path", b->ca_cert, "key_path", b->ca_key),
               !b->ca_cert && !b->ca_key);
    put_unless(&tls, "scoped_verify_upstream", spec_bound_no_verify_json(b), b->no_verify.n == 0);
    put_unless(&tls, "block_quic_on_intercept", json_false(), !b->quic);
    put_unless(&tls, "upstream_ca_cert", json_list(b->cas.v), b->cas.n == 0);
    put_unless(&o, "tls", tls, tls && json_object_size(tls) == 0);
    put_unless(&o, "secrets", spec_bound_secrets_json(b), b->secrets.n == 0);
    put_unless(&o, "interface", pools_json(n), n->pool4.bits == 0 && n->pool6.bits == 0);
    json_t *limits = limits_json(n);
    put_unless(&o, "rate_limits", limits, json_is_null(limits));
    return o;
}

json_t *spec_net_to_json(const struct spec_net *n, bool full)
{
    return full ? full_json(n) : short_json(n);
}

/* --- reading -------------------------------------------------------------------------------- */

int spec_port_from_json(const json_t *j, struct spec_port *ret)
{
    const char *bind = plain_text(json_object_get(j, "host_bind"));
    const char *proto = plain_text(json_object_get(j, "protocol"));
    json_int_t host = json_integer_value(json_object_get(j, "host_port"));
    json_int_t guest = json_integer_value(json_object_get(j, "guest_port"));
    bool udp = proto && strcmp(proto, "udp") == 0;
    if (!bind || addr_parse(bind, &ret->bind) < 0 || host < 0 || host > 65535 || guest < 1 ||
        guest > 65535 || (proto && !udp && strcmp(proto, "tcp") != 0))
        return -EINVAL;
    ret->host = (uint16_t)host;
    ret->guest = (uint16_t)guest;
    ret->proto = udp ? PROTO_UDP : PROTO_TCP;
    return 0;
}

static int read_ports(struct spec_net *n, const json_t *o, struct err *e)
{
    const json_t *a;
    int r = read_array(o, "ports", &a, e);
    for (size_t i = 0; r == 0 && i < json_array_size(a); i++) {
        struct spec_port p = {0};
        if (spec_port_from_json(json_array_get(a, i), &p) < 0)
            return bad(e, "ports");
        r = spec_net_add_port(n, &p, e);
    }
    return r;
}

static int read_default(const json_t *o, const char *key, enum net_default *ret, struct err *e)
{
    size_t v = *ret;
    int r = read_choice(o, key, default_names, ARRAY_LEN(default_names), &v, e);
    *ret = (enum net_default)v;
    return r;
}

static int read_policy(struct spec_net *n, const json_t *o, struct err *e)
{
    const json_t *p;
    AUTO_FREE char *profile = NULL;
    AUTO_STRLIST struct strlist rules = {0};
    int r = read_object(o, "policy", &p, e);
    if (r == 0)
        r = read_default(p, "default_egress", &n->egress, e);
    if (r == 0)
        r = read_default(p, "default_ingress", &n->ingress, e);
    if (r == 0)
        r = read_text(p, "profile", &profile, e);
    if (r == 0)
        r = read_list(p, "rules", &rules, e);
    if (r == 0 && profile)
        r = spec_net_set_profile(n, profile, e);
    for (size_t i = 0; r == 0 && i < rules.n; i++)
        r = spec_net_add_rules(n, rules.v[i], e);
    return r;
}

static int read_small(const json_t *o, const char *key, uint32_t *ret, struct err *e)
{
    uint64_t v = *ret;
    int r = read_u64(o, key, &v, e);
    if (r == 0 && v > UINT32_MAX)
        return bad(e, key);
    *ret = (uint32_t)v;
    return r;
}

static int read_dns(struct spec_net *n, const json_t *o, struct err *e)
{
    const json_t *dns;
    AUTO_STRLIST struct strlist servers = {0};
    bool protect = !n->allow_rebind;
    int r = read_object(o, "dns", &dns, e);
    if (r == 0)
        r = read_small(dns, "query_timeout_ms", &n->dns_timeout_ms, e);
    if (r == 0)
        r = read_bool(dns, "rebind_protection", &protect, e);
    n->allow_rebind = !protect;
    if (r == 0)
        r = read_list(dns, "nameservers", &servers, e);
    for (size_t i = 0; r == 0 && i < servers.n; i++)
        r = spec_net_add_nameserver(n, servers.v[i], e);
    return r;
}

static int read_proxy_and_limits(struct spec_net *n, const json_t *o, struct err *e)
{
    const json_t *proxy = NULL, *limits = NULL, *out = NULL, *in = NULL;
    int r = read_object(o, "proxy", &proxy, e);
    if (r == 0)
        r = spec_proxy_from_json(&n->proxy, proxy, e);
    if (r == 0)
        r = read_object(o, "rate_limits", &limits, e);
    if (r == 0)
        r = read_object(limits, "egress", &out, e);
    if (r == 0)
        r = spec_rate_from_json(&n->egress_rate, out, e);
    if (r == 0)
        r = read_object(limits, "ingress", &in, e);
    return r < 0 ? r : spec_rate_from_json(&n->ingress_rate, in, e);
}

static int read_pool(const json_t *o, const char *key, bool v4, struct addr_pool *to, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int r = read_text(o, key, &text, e);
    return r < 0 || !text ? r : spec_pool_parse(text, v4, to, e);
}

static int read_pools(struct spec_net *n, const json_t *o, struct err *e)
{
    const json_t *pools = NULL;
    int r = read_object(o, "interface", &pools, e);
    if (r == 0)
        r = read_pool(pools, "ipv4_pool", true, &n->pool4, e);
    return r < 0 ? r : read_pool(pools, "ipv6_pool", false, &n->pool6, e);
}

int spec_net_from_json(struct spec_net *n, const json_t *j, struct err *e)
{
    const json_t *o;
    bool on = true;
    int r = read_object(j, "network", &o, e);
    if (r < 0 || !o)
        return r;
    r = read_bool(o, "enabled", &on, e);
    n->off = !on;
    if (r == 0)
        r = read_bool(o, "strict", &n->strict, e);
    if (r == 0)
        r = read_small(o, "max_connections", &n->max_connections, e);
    if (r == 0)
        r = read_bool(o, "trust_host_cas", &n->trust_host_cas, e);
    if (r == 0)
        r = read_proxy_and_limits(n, o, e);
    if (r == 0)
        r = read_pools(n, o, e);
    if (r == 0)
        r = read_dns(n, o, e);
    if (r == 0)
        r = read_policy(n, o, e);
    if (r == 0)
        r = spec_bound_from_json(&n->bound, o, e);
    return r < 0 ? r : read_ports(n, o, e);
}
