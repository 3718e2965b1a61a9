#include "cli/options/traffic.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct opt traffic_opts[] = {
    {"net-egress-bandwidth", 0, "SIZE[/TIME]",
     "Egress bandwidth limit: 1M (per second), 512K/100ms"},
    {"net-egress-bandwidth-burst", 0, "SIZE", "Egress bandwidth burst, once, on top of the limit"},
    {"net-egress-ops", 0, "COUNT[/TIME]", "Egress packet rate limit"},
    {"net-egress-ops-burst", 0, "COUNT", "Egress packet burst, once, on top of the limit"},
    {"net-ingress-bandwidth", 0, "SIZE[/TIME]", "Ingress bandwidth limit"},
    {"net-ingress-bandwidth-burst", 0, "SIZE",
     "Ingress bandwidth burst, once, on top of the limit"},
    {"net-ingress-ops", 0, "COUNT[/TIME]", "Ingress packet rate limit"},
    {"net-ingress-ops-burst", 0, "COUNT", "Ingress packet burst, once, on top of the limit"},
    {"proxy", 0, "URL", "SOCKS proxy for all connections: socks5://IP:PORT or socks4://IP:PORT"},
    {"socks5-username", 0, "NAME", "User name for a SOCKS5 proxy"},
    {"socks5-password-env", 0, "KEY",
     "Host environment variable that holds the password, read at every start"},
    {"socks4-user-id", 0, "ID", "User ID for a SOCKS4 proxy"},
    {"trust-host-cas", 0, NULL,
     "Trust this host's certificate authorities (or $SSL_CERT_FILE) in the guest"},
    {0},
};
const struct opt_group traffic_group = {"Rate limits and proxy", traffic_opts};

/* --- limits ---------------------------------------------------------------------------------- */

static int limit(const struct args *a, const char *name, bool bytes, struct rate_limit *ret,
                 struct err *e)
{
    char burst_name[64];
    (void)snprintf(burst_name, sizeof(burst_name), "%s-burst", name);
    const char *text = args_get(a, name), *burst = args_get(a, burst_name);
    if (burst && !text)
        return err_set(e, EINVAL, "--%s requires --%s", burst_name, name);
    if (text && spec_rate_parse(text, bytes, ret) < 0)
        return args_bad_value(a, name, text,
                              bytes ? SPEC_RATE_EXPECTED_BYTES : SPEC_RATE_EXPECTED_COUNT, e);
    if (burst && spec_rate_parse_burst(burst, bytes, ret) < 0)
        return args_bad_value(a, burst_name, burst,
                              bytes ? "expected a size such as 10M" : "expected a count", e);
    return 0;
}

static int limits(const struct args *a, struct spec_net *n, struct err *e)
{
    int r = limit(a, "net-egress-bandwidth", true, &n->egress_rate.bytes, e);
    if (r == 0)
        r = limit(a, "net-egress-ops", false, &n->egress_rate.packets, e);
    if (r == 0)
        r = limit(a, "net-ingress-bandwidth", true, &n->ingress_rate.bytes, e);
    if (r == 0)
        r = limit(a, "net-ingress-ops", false, &n->ingress_rate.packets, e);
    return r;
}

/* --- proxy ----------------------------------------------------------------------------------- */

static int copy_value(const struct args *a, const char *name, char **ret, struct err *e)
{
    const char *v = args_get(a, name);
    if (!v)
        return 0;
    free(*ret);
    *ret = strdup(v);
    return *ret ? 0 : err_oom(e);
}

static int proxy(const struct args *a, struct spec_proxy *p, struct err *e)
{
    static const struct {
        const char *name;
        int version;
    } needs[] = {{"socks5-username", 5}, {"socks5-password-env", 5}, {"socks4-user-id", 4}};
    const char *url = args_get(a, "proxy");
    int r = url ? spec_proxy_set(p, url, e) : 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(needs); i++)
        if (args_has(a, needs[i].name) && p->version != needs[i].version)
            r = err_set(e, EINVAL, "--%s requires --proxy socks%d://...", needs[i].name,
                        needs[i].version);
    if (r == 0)
        r = copy_value(a, p->version == 4 ? "socks4-user-id" : "socks5-username", &p->user, e);
    if (r == 0)
        r = copy_value(a, "socks5-password-env", &p->password_env, e);
    return r < 0 ? r : spec_proxy_validate(p, e);
}

int traffic_options(const struct args *a, struct spec_net *n, struct err *e)
{
    n->trust_host_cas = args_has(a, "trust-host-cas");
    int r = limits(a, n, e);
    return r < 0 ? r : proxy(a, &n->proxy, e);
}
