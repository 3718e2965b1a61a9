#include "cli/options/net.h"

#include "cli/core/ui.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/words.h"

#include <errno.h>
#include <string.h>

static const struct opt net_opts[] = {
    {"port", 'p', "[BIND:]HOST:GUEST[/udp]",
     "Publish a port: 8080:80, 0:80 (any free port); 8000-8010:8000-8010 is a range "
     "(default BIND: 127.0.0.1)",
     OPT_REPEAT | OPT_COMMON, .alias = "publish"},
    NET_POLICY_OPTIONS,
    {"net-strict", 0, NULL,
     "If rules name hosts, require connections to present a name (TLS SNI, HTTP Host): TCP only"},
    {"max-connections", 0, "N", "Limit on open TCP connections (default: 256)"},
    {"dns-nameserver", 0, "IP[:PORT]", "Name server to query instead of the host's", OPT_REPEAT},
    {"dns-query-timeout-ms", 0, "MS", "Timeout of a name server (default: 5000)"},
    {"net-ipv4-pool", 0, "CIDR",
     "Network to take the guest's IPv4 network from, a /30 (default: 172.27.255.252/30)"},
    {"net-ipv6-pool", 0, "CIDR",
     "Network to take the guest's IPv6 network from, a /64 (default: fd42:6d73:62::/64)"},
    {"no-dns-rebind-protection", 0, NULL, "Accept private addresses in answers for public names"},
    {0},
};
const struct opt_group net_group = {"Network", net_opts};

static int number(const struct args *a, const char *name, uint64_t most, uint32_t *ret,
                  struct err *e)
{
    const char *v = args_get(a, name);
    char why[64];
    uint64_t n;
    if (!v)
        return 0;
    if (parse_u64(v, &n) < 0 || n < 1 || n > most) {
        (void)snprintf(why, sizeof(why), "expected a number from 1 to %llu",
                       (unsigned long long)most);
        return args_bad_value(a, name, v, why, e);
    }
    *ret = (uint32_t)n;
    return 0;
}

static void action(const struct args *a, const char *name, enum net_default *ret)
{
    const char *v = args_get(a, name);
    if (v)
        *ret = strcmp(v, "allow") == 0 ? NET_DEFAULT_ALLOW : NET_DEFAULT_DENY;
}

static int repeated(struct spec_net *n, const struct arg_opt *o, struct err *e)
{
    const char *name = o->opt->name;
    if (strcmp(name, "net-rule") == 0)
        return spec_net_add_rules(n, o->value, e);
    if (strcmp(name, "port") == 0)
        return spec_net_add_ports(n, o->value, e);
    if (strcmp(name, "dns-nameserver") == 0)
        return spec_net_add_nameserver(n, o->value, e);
    return 0;
}

/* Rules are exceptions to "no network", as in scripts written for other tools. */
static int no_net(const struct args *a, struct spec_net *n, struct err *e)
{
    static const char *const defaults[] = {"net-default", "net-default-egress",
                                           "net-default-ingress"};
    const char *mode = args_get(a, "network");
    if (!args_has(a, "no-net") && !(mode && strcmp(mode, "none") == 0))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(defaults); i++) {
        const char *v = args_get(a, defaults[i]);
        if (v && strcmp(v, "allow") == 0)
            return err_set(e, EINVAL, "--no-net cannot be used with --%s allow", defaults[i]);
    }
    n->off = n->rules.n == 0;
    n->egress = n->ingress = NET_DEFAULT_DENY;
    return 0;
}

/* Other tools' networks: accepts those with a meaning here. */
static int check_mode(const struct args *a, struct err *e)
{
    const char *mode = args_get(a, "network");
    if (!mode || word_among("none|bridge|default", mode))
        return 0;
    err_set(e, EINVAL, "there is no network '%s': every sandbox has its own", mode);
    err_hint(e, "--net public,host lets it reach this host, too; -p publishes its ports; --network "
                "none cuts it off");
    return -EINVAL;
}

int net_policy_options(const struct args *a, struct spec_net *n, struct err *e)
{
    const char *profile = args_get(a, "net");
    int r = check_mode(a, e);
    if (r == 0 && profile)
        r = spec_net_set_profile(n, profile, e);
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        r = repeated(n, &a->opts[i], e);
    action(a, "net-default", &n->egress);
    action(a, "net-default", &n->ingress);
    action(a, "net-default-egress", &n->egress);
    action(a, "net-default-ingress", &n->ingress);
    return r < 0 ? r : no_net(a, n, e);
}

static int pool(const struct args *a, const char *name, bool v4, struct addr_pool *ret,
                struct err *e)
{
    const char *v = args_get(a, name);
    return v ? spec_pool_parse(v, v4, ret, e) : 0;
}

int net_options(const struct args *a, struct spec_net *n, struct err *e)
{
    int r = net_policy_options(a, n, e);
    if (r == 0)
        r = number(a, "max-connections", SPEC_CONNECTIONS_MAX, &n->max_connections, e);
    if (r == 0)
        r = number(a, "dns-query-timeout-ms", SPEC_DNS_TIMEOUT_MAX_MS, &n->dns_timeout_ms, e);
    if (r == 0)
        r = pool(a, "net-ipv4-pool", true, &n->pool4, e);
    if (r == 0)
        r = pool(a, "net-ipv6-pool", false, &n->pool6, e);
    n->strict = args_has(a, "net-strict");
    n->allow_rebind = args_has(a, "no-dns-rebind-protection");
    return r;
}

void net_note_allowlist(const struct spec_net *n)
{
    if (spec_net_is_allowlist(n))
        ui_note("note: --net-rule alone allows these targets and nothing else; add --net public to "
                "keep the rest of the Internet reachable");
}
