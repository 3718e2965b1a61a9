#include "monitor/net_setup.h"

#include "util/cleanup.h"
#include "virtio/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { CONNECTIONS_LEAST = 64 }; /* at least: other files are rarely all in use */

static const uint8_t guest_mac[6] = {0x02, 0x6d, 0x73, 0x62, 0, 2};
static const uint8_t gateway_mac[6] = {0x02, 0x6d, 0x73, 0x62, 0, 1};

static void take_ends(const struct addr_pool *pool, uint32_t slot, const char *usual_gateway,
                      const char *usual_guest, struct net_addr *gateway, struct net_addr *guest)
{
    if (pool->bits) {
        spec_pool_ends(pool, slot, gateway, guest);
        return;
    }
    (void)addr_parse(usual_gateway, gateway);
    (void)addr_parse(usual_guest, guest);
}

static void set_addresses(struct net_config *c, const struct spec_net *n,
                          const struct net_host *host)
{
    memcpy(c->guest_mac, guest_mac, sizeof(guest_mac));
    memcpy(c->gateway_mac, gateway_mac, sizeof(gateway_mac));
    take_ends(&n->pool4, n->slot, NET_GATEWAY4, NET_GUEST4, &c->gateway4, &c->guest4);
    if (host->ipv6)
        take_ends(&n->pool6, n->slot, NET_GATEWAY6, NET_GUEST6, &c->gateway6, &c->guest6);
}

static void set_resolvers(struct dns_config *c, const struct spec_net *n,
                          const struct net_host *host)
{
    bool own = n->n_nameservers > 0;
    c->n_upstreams = own ? n->n_nameservers : host->n_resolvers;
    memcpy(c->upstream, own ? n->nameserver : host->resolver, sizeof(c->upstream));
    c->timeout_ms = n->dns_timeout_ms;
    c->allow_rebind = n->allow_rebind;
}

unsigned net_max_connections(const struct spec_net *n, uint64_t others)
{
    uint64_t need = others + net_thread_files(n);
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_max >= need)
        return n->max_connections;
    uint64_t lack = need - l.rlim_max;
    unsigned most = n->max_connections > lack ? (unsigned)(n->max_connections - lack) : 0;
    return MAX(most, MIN(n->max_connections, (unsigned)CONNECTIONS_LEAST));
}

static void add_host(struct gate_host *to, const struct subst_host *h, bool bypass)
{
    *to = (struct gate_host){.suffix = h->suffix, .bypass = bypass};
    (void)snprintf(to->name, sizeof(to->name), "%s", h->name);
}

static int look_into(struct gate *g, const struct spec_bound *b, struct err *e)
{
    struct gate_host *list = NULL;
    size_t n = 0;
    if (!spec_bound_any(b))
        return 0;
    int r = net_hosts(b, &list, &n, e);
    if (r == 0)
        gate_set_hosts(g, list, n);
    return r;
}

static int publish_ports(struct gate *g, const struct net_ports *ports, struct err *e)
{
    for (size_t i = 0; i < ports->n; i++) {
        int r = net_publish(gate_net(g), ports->port[i].proto, ports->fd[i], ports->port[i].guest);
        if (r < 0)
            return err_sys(e, -r, "cannot publish port %u", ports->port[i].host);
    }
    return 0;
}

int net_hosts(const struct spec_bound *b, struct gate_host **ret, size_t *n, struct err *e)
{
    AUTO_FREE struct gate_host *list = calloc(GATE_HOSTS_MAX, sizeof(*list));
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    size_t k = 0;
    int r = 0;
    if (!list || !x)
        return err_oom(e);
    for (size_t i = 0; r == 0 && i < b->secrets.n; i++) {
        r = spec_bound_parse(b->secrets.v[i], x, e);
        for (size_t j = 0; r == 0 && j < x->n_hosts && k < GATE_HOSTS_MAX; j++) {
            add_host(&list[k], &x->host[j], false);
            list[k++].plain = spec_bound_says(x, SUBST_PLAINTEXT);
        }
    }
    for (size_t i = 0; r == 0 && i < b->intercept.n + b->bypass.n && k < GATE_HOSTS_MAX; i++) {
        bool bypass = i >= b->intercept.n;
        struct subst_host h;
        r = spec_host_parse(bypass ? b->bypass.v[i - b->intercept.n] : b->intercept.v[i], &h, e);
        if (r == 0) {
            add_host(&list[k], &h, bypass);
            list[k++].quic = b->quic;
        }
    }
    if (r == 0 && k == GATE_HOSTS_MAX)
        r = err_set(e, E2BIG, "secrets are bound to too many hosts: at most %d",
                    GATE_HOSTS_MAX - 1);
    if (r < 0)
        return r;
    *ret = steal_ptr(&list);
    *n = k;
    return 0;
}

int net_setup(struct net_thread **ret, const struct spec_net *n, const struct net_host *host,
              const struct net_ports *ports, unsigned max_connections, struct loop *main_loop,
              const struct net_thread_events *ev, void *ctx, struct err *e)
{
    struct policy policy;
    struct gate_config c = {.strict = n->strict, .net.max_tcp = max_connections};
    int r = spec_net_policy(n, &policy, e);
    if (r < 0)
        return r;
    _Static_assert((int)GATE_PORTS_MAX == (int)SPEC_TLS_PORTS_MAX, "as many");
    memcpy(c.tls_port, n->bound.port, sizeof(c.tls_port));
    c.n_tls_ports = n->bound.n_ports;
    set_addresses(&c.net, n, host);
    c.net.proxy = host->proxy;
    c.net.egress = n->egress_rate;
    c.net.ingress = n->ingress_rate;
    set_resolvers(&c.dns, n, host);
    r = net_thread_new(ret, &c, &policy, main_loop, ev, ctx, e);
    policy_free(&policy);
    if (r == 0)
        r = look_into(net_thread_gate(*ret), &n->bound, e);
    return r < 0 ? r : publish_ports(net_thread_gate(*ret), ports, e);
}

static void put_address(struct proto_writer *w, const struct net_addr *address, uint32_t bits,
                        const struct net_addr *gateway)
{
    char text[ADDR_TEXT_MAX];
    size_t mark = proto_nest(w, F_NET_ADDRESS);
    addr_format(address, text);
    proto_str(w, F_NET_IP, text);
    proto_u32(w, F_NET_BITS, bits);
    addr_format(gateway, text);
    proto_str(w, F_NET_GATEWAY, text);
    proto_nest_end(w, mark);
}

void net_put_config(struct proto_writer *w, const struct spec_net *n, const struct net_host *host)
{
    struct net_config c = {0};
    char resolver[ADDR_TEXT_MAX];
    if (n->off)
        return;
    set_addresses(&c, n, host);
    addr_format(&c.gateway4, resolver);
    size_t mark = proto_nest(w, F_NET);
    proto_str(w, F_NAME, "eth0");
    proto_u32(w, F_NET_MTU, NET_MTU);
    put_address(w, &c.guest4, POOL_BITS4, &c.gateway4);
    if (host->ipv6)
        put_address(w, &c.guest6, POOL_BITS6, &c.gateway6);
    proto_str(w, F_NET_RESOLVER, resolver);
    proto_str(w, F_NET_HOST_NAME, DNS_HOST_NAME);
    proto_nest_end(w, mark);
}

void net_put_tap(struct proto_writer *w, const struct net_tap *tap)
{
    size_t mark = proto_nest(w, F_NET);
    proto_str(w, F_NAME, "eth0");
    proto_u32(w, F_NET_MTU, tap->mtu);
    proto_bytes(w, F_NET_MESSAGES, tap->messages, tap->messages_len);
    proto_nest_end(w, mark);
}
