#include "net/gate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "net/host_route.h"
#include "util/cleanup.h"

enum { PORT_DNS = 53, PORT_HTTP = 80, PORT_TLS = 443, RECHECK_NS = 20 * 1000000 };

struct gate {
    struct loop *loop;
    struct net *net;
    struct dns *dns;
    struct pins *pins;
    struct route route;
    struct loop_src news;      /* of changes to the host's addresses */
    struct loop_timer recheck; /* of flows, after such changes */
    struct policy policy;
    struct gate_config cfg;
    struct gate_host *host; /* to intercept */
    size_t n_hosts;
    gate_told told;
    void *ctx;
};

static void report(struct gate *g, const struct gate_decision *d)
{
    if (g->told)
        g->told(g->ctx, d);
}

static const char *known_name(const struct gate *g, const struct net_flow_id *id)
{
    const char *name = pins_name(g->pins, &id->peer.addr, now_ns());
    return name ? name : "";
}

/* The name that opened a flow, or else one that its peer has; NULL: none. */
static const char *deciding_name(const struct gate *g, const struct net_flow_id *id,
                                 const struct policy_answer *a)
{
    const struct policy_rule *r = a->by_name ? &g->policy.rule[a->rule] : NULL;
    return r ? pins_match(g->pins, &id->peer.addr, r->name, r->kind == TARGET_SUFFIX, now_ns())
             : pins_name(g->pins, &id->peer.addr, now_ns());
}

static bool is_gateway(const struct gate *g, const struct net_addr *a)
{
    static const struct net_addr none;
    return addr_equal(a, &g->cfg.net.gateway4) ||
           (addr_equal(a, &g->cfg.net.gateway6) && !addr_equal(a, &none));
}

/* Whether it is the host's own address, or leads to one through a translator or a tunnel. Loopback
 * and multicast have groups of their own. */
static bool is_own(struct gate *g, const struct net_addr *a)
{
    struct net_addr inner[ADDR_INNER_MAX];
    enum addr_class class = addr_classify(a);
    if (class == CLASS_LOOPBACK || class == CLASS_MULTICAST)
        return false;
    if (route_is_own(&g->route, a))
        return true;
    for (unsigned i = 0, n = addr_inner4(a, inner); i < n; i++)
        if (route_is_own(&g->route, &inner[i]))
            return true;
    return false;
}

/* Which names count as those of a flow's peer, for rules with names. */
enum names {
    NAMES_PINNED, /* all that this sandbox has resolved to its address */
    NAMES_OWN,    /* only the flow's own: that which it shows, or for which it was opened */
    NAMES_BOTH,
};

struct flow_names {
    const struct gate *gate;
    const char *own;
    enum names which;
};

static bool is_named(void *ctx, const struct net_addr *peer, bool suffix, const char *name)
{
    const struct flow_names *n = ctx;
    if (n->which != NAMES_PINNED && policy_name_matches(n->own, name, suffix))
        return true;
    return n->which != NAMES_OWN && pins_match(n->gate->pins, peer, name, suffix, now_ns());
}

/* What the policy says about a flow; own: its own name, or NULL. */
static struct policy_answer decide(struct gate *g, const struct net_flow_id *id, const char *own,
                                   enum names which)
{
    struct flow_names names = {.gate = g, .own = own, .which = which};
    bool gateway = !id->inbound && is_gateway(g, &id->peer.addr);
    struct policy_flow f = {.dir = id->inbound ? POLICY_INGRESS : POLICY_EGRESS,
                            .proto = id->proto,
                            .peer = id->peer.addr,
                            .port = id->inbound ? id->guest.port : id->peer.port,
                            .host = gateway || (!id->inbound && is_own(g, &id->peer.addr)),
                            .gateway = gateway,
                            .dns = gateway && id->peer.port == PORT_DNS && id->proto != PROTO_ICMP,
                            .named = is_named,
                            .ctx = &names,
                            .shown = own};
    struct policy_answer a = policy_decide(&g->policy, &f);
    if (f.dns && a.rule < 0)
        a.allow = true; /* each question is checked against the policy itself */
    return a;
}

/* Whether an open flow with that name ("": none) would be allowed now. If it was opened by name, the
 * pin is not needed any more; but what a flow shows that was allowed by address may be a lie, and
 * the address may have several names. */
static bool allowed(struct gate *g, const struct net_flow_id *id, uint64_t tag, const char *name,
                    bool shown)
{
    char own[POLICY_NAME_MAX];
    bool named = policy_name_normal(name, own);
    bool true_name = named && ((tag & GATE_BY_NAME) ||
                               pins_match(g->pins, &id->peer.addr, own, false, now_ns()));
    struct policy_answer a =
        decide(g, id, named ? own : NULL, true_name ? NAMES_BOTH : NAMES_PINNED);
    if (named && shown && a.allow && a.by_name) {
        if (!true_name)
            return false;
        a = decide(g, id, own, NAMES_OWN);
    }
    return a.allow && !explain_refusal(&a, id->proto, id->peer.port);
}

/* Whatever leaves this machine goes through the proxy, if there is one. */
static bool goes_by_proxy(struct gate *g, const struct net_flow_id *id)
{
    return g->cfg.net.proxy.version && !id->inbound && !is_gateway(g, &id->peer.addr) &&
           !is_own(g, &id->peer.addr);
}

/* --- hosts to look into ---------------------------------------------------------------------- */

static bool looked_into(const struct gate *g, const char *name, bool plain)
{
    bool found = false;
    for (size_t i = 0; i < g->n_hosts; i++) {
        const struct gate_host *h = &g->host[i];
        if (policy_name_matches(name, h->name, h->suffix)) {
            if (h->bypass)
                return false;
            found |= h->plain || !plain;
        }
    }
    return found;
}

static bool any_plain(const struct gate *g)
{
    bool any = false;
    for (size_t i = 0; i < g->n_hosts; i++)
        any |= g->host[i].plain;
    return any;
}

static bool is_tls_port(const struct gate *g, uint16_t port)
{
    bool is = port == PORT_TLS;
    for (size_t i = 0; !is && i < g->cfg.n_tls_ports; i++)
        is = g->cfg.tls_port[i] == port;
    return is;
}

/* QUIC cannot be intercepted. */
static bool hides_secrets(struct gate *g, const struct net_flow_id *id)
{
    if (id->inbound || id->proto != PROTO_UDP || !is_tls_port(g, id->peer.port))
        return false;
    for (size_t i = 0; i < g->n_hosts; i++)
        if (!g->host[i].bypass && !g->host[i].quic &&
            pins_match(g->pins, &id->peer.addr, g->host[i].name, g->host[i].suffix, now_ns()))
            return true;
    return false;
}

void gate_set_hosts(struct gate *g, struct gate_host *list, size_t n)
{
    free(g->host);
    g->host = list;
    g->n_hosts = n;
}

void gate_tell(struct gate *g, const struct gate_decision *d)
{
    report(g, d);
}

struct policy_answer gate_ask(struct gate *g, const struct net_flow_id *id,
                              char why[POLICY_WHY_MAX])
{
    struct policy_answer a = decide(g, id, NULL, NAMES_PINNED);
    const char *refusal = explain_refusal(&a, id->proto, id->peer.port);
    policy_explain(&g->policy, &a, why);
    if (refusal) {
        a.allow = false;
        (void)snprintf(why, POLICY_WHY_MAX, "%s", refusal);
    }
    if (a.allow && hides_secrets(g, id)) {
        a.allow = false;
        (void)snprintf(why, POLICY_WHY_MAX,
                       "denied: QUIC to a host whose connections are intercepted");
    }
    if (a.allow && id->proto != PROTO_TCP && goes_by_proxy(g, id)) {
        a.allow = false;
        (void)snprintf(why, POLICY_WHY_MAX, "%s", EXPLAIN_PROXY);
    }
    return a;
}

static void explain_address(struct gate *g, const struct explain_target *t,
                            const struct net_addr *addr, struct explain_peer *ret)
{
    struct net_flow_id id = {
        .proto = t->proto, .guest.addr = g->cfg.net.guest4, .peer = {*addr, t->port}};
    ret->addr = *addr;
    ret->allow = gate_ask(g, &id, ret->why).allow;
}

/* A resolved name is judged by its addresses, any other by the policy alone. */
void gate_explain(struct gate *g, const struct explain_target *t, struct explain_answer *ret)
{
    struct net_addr pinned[EXPLAIN_PEERS_MAX];
    if (t->name[0] == '\0') {
        struct explain_peer p;
        explain_address(g, t, &t->addr, &p);
        *ret = (struct explain_answer){.allow = p.allow};
        (void)snprintf(ret->why, sizeof(ret->why), "%s", p.why);
        return;
    }
    explain_by_policy(&g->policy, t, ret);
    if (g->cfg.net.proxy.version)
        explain_with_proxy(t, ret);
    ret->n_peers = pins_addresses(g->pins, t->name, pinned, EXPLAIN_PEERS_MAX, now_ns());
    bool any = false;
    for (size_t i = 0; i < ret->n_peers; i++) {
        explain_address(g, t, &pinned[i], &ret->peer[i]);
        if (i == 0 || (ret->peer[i].allow && !any))
            (void)snprintf(ret->why, sizeof(ret->why), "%s",
                           ret->may_ask ? ret->peer[i].why : ret->ask_why);
        any = any || ret->peer[i].allow;
    }
    if (ret->n_peers)
        ret->allow = any && ret->may_ask;
}

/* --- the stack's hooks ----------------------------------------------------------------------- */

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    struct gate *g = ctx;
    char why[POLICY_WHY_MAX];
    struct policy_answer a = gate_ask(g, id, why);
    bool host = !id->inbound && is_gateway(g, &id->peer.addr);
    if (a.allow && host && id->peer.port == PORT_DNS) {
        v->fd = id->proto == PROTO_TCP ? dns_connect(g->dns) : -EPROTONOSUPPORT;
        v->action = v->fd >= 0 ? NET_LOCAL : NET_DENY;
        return; /* its questions are logged instead */
    }
    if (a.allow) {
        v->action = NET_ALLOW;
        v->name = deciding_name(g, id, &a);
        v->tag = (a.by_name ? GATE_BY_NAME : 0) | (a.watch ? GATE_WATCHED : 0);
        if (g->n_hosts && !id->inbound && !host &&
            (is_tls_port(g, id->peer.port) || (id->peer.port == PORT_HTTP && any_plain(g))))
            v->tag |= GATE_LOOKED_INTO;
        v->sniff = v->tag && id->proto == PROTO_TCP;
        v->proxied = goes_by_proxy(g, id);
        if (host) /* the gateway represents the host's own loopback */
            (void)addr_parse(addr_is4(&id->peer.addr) ? "127.0.0.1" : "::1", &v->to.addr);
    }
    struct gate_decision d = {
        .what = GATE_FLOW, .allow = a.allow, .id = id, .name = known_name(g, id), .why = why};
    report(g, &d);
}

/* Whether a flow that was allowed by name shows a name that agrees: the address was resolved from
 * it, too, and the flow would be allowed if it were the only such name. */
static bool agrees(struct gate *g, const struct net_flow_id *id, const char *name,
                   char why[POLICY_WHY_MAX])
{
    struct policy_answer a = policy_decide_name(&g->policy, name);
    if (a.allow && !pins_match(g->pins, &id->peer.addr, name, false, now_ns())) {
        (void)snprintf(why, POLICY_WHY_MAX, "denied: the address was not resolved from that name");
        return false;
    }
    if (a.allow)
        a = decide(g, id, name, NAMES_OWN);
    policy_explain(&g->policy, &a, why);
    return a.allow;
}

/* Handles what a flow, for which names decide, shows: a name or none. */
static bool shown_ok(struct gate *g, const struct net_flow_id *id, uint64_t tag,
                     enum sniff_kind kind, const char *shown, char why[POLICY_WHY_MAX])
{
    char name[POLICY_NAME_MAX];
    if (kind == SNIFF_BROKEN || (kind == SNIFF_ECH && g->cfg.strict)) {
        (void)snprintf(why, POLICY_WHY_MAX, "denied: the flow %s",
                       kind == SNIFF_ECH ? "hides its name" : "shows no unambiguous name");
        return false;
    }
    bool is_address = strchr(shown, ':') != NULL; /* an IPv6 address; IPv4 ones pass for names */
    if (shown[0] == '\0' || (is_address && !(tag & GATE_BY_NAME))) {
        (void)snprintf(why, POLICY_WHY_MAX, "%s: the flow shows no name",
                       g->cfg.strict ? "denied" : "allowed");
        return !g->cfg.strict;
    }
    if (!policy_name_normal(shown, name)) {
        (void)snprintf(why, POLICY_WHY_MAX, "denied: the flow shows an invalid name");
        return false;
    }
    if ((tag & GATE_BY_NAME) && !agrees(g, id, name, why))
        return false;
    if (!(tag & GATE_WATCHED))
        return true;
    struct policy_answer a = decide(g, id, name, NAMES_PINNED);
    policy_explain(&g->policy, &a, why);
    return a.allow;
}

/* A hidden second name does not matter to a peer that does not know it. */
static bool to_divert(struct gate *g, const struct net_flow_id *id, uint64_t tag,
                      enum sniff_kind kind, const char *shown, char name[POLICY_NAME_MAX])
{
    bool plain = id->peer.port == PORT_HTTP;
    bool right = plain ? kind == SNIFF_HTTP : kind == SNIFF_TLS || kind == SNIFF_ECH;
    return (tag & GATE_LOOKED_INTO) && right && policy_name_normal(shown, name) &&
           looked_into(g, name, plain);
}

enum net_passage gate_shown(struct gate *g, const struct net_flow_id *id, uint64_t tag,
                            enum sniff_kind kind, const char *name)
{
    char why[POLICY_WHY_MAX] = "allowed: it is intercepted";
    uint64_t by_policy = tag & ~(uint64_t)GATE_LOOKED_INTO;
    char normal[POLICY_NAME_MAX];
    bool divert = to_divert(g, id, tag, kind, name, normal);
    if (!by_policy && !divert)
        return NET_PASS;
    bool allow = !by_policy || shown_ok(g, id, by_policy, divert ? SNIFF_TLS : kind, name, why);
    if (allow && divert && !pins_match(g->pins, &id->peer.addr, normal, false, now_ns())) {
        allow = false;
        (void)snprintf(why, sizeof(why), "denied: the address was not resolved from that name");
    }
    struct gate_decision d = {
        .what = GATE_SHOWN, .allow = allow, .id = id, .name = name, .why = why};
    report(g, &d);
    return !allow ? NET_REFUSE : divert ? NET_DIVERT : NET_PASS;
}

static int on_divert(void *ctx, const struct net_flow_id *id, const char *name, int fd)
{
    struct gate *g = ctx;
    char normal[POLICY_NAME_MAX];
    if (!g->cfg.divert || !policy_name_normal(name, normal))
        return -EINVAL;
    return g->cfg.divert(g->ctx, id, normal, fd);
}

static enum net_passage on_named(void *ctx, const struct net_flow_id *id, uint64_t tag,
                                 enum sniff_kind kind, const char *name)
{
    return gate_shown(ctx, id, tag, kind, name);
}

static void on_ended(void *ctx, const struct net_flow_id *id, uint64_t tag,
                     const struct net_flow_end *e)
{
    struct gate *g = ctx;
    if (!id->inbound && is_gateway(g, &id->peer.addr) && id->peer.port == PORT_DNS)
        return;
    struct gate_decision d = {.what = GATE_ENDED,
                              .allow = true,
                              .id = id,
                              .name = known_name(g, id),
                              .why = e->how,
                              .to_host = e->to_host,
                              .to_guest = e->to_guest,
                              .ns = e->ns};
    report(g, &d);
}

static bool on_datagram(void *ctx, const struct net_flow_id *id, const void *p, size_t n)
{
    struct gate *g = ctx;
    if (id->peer.port != PORT_DNS || !allowed(g, id, 0, "", false))
        return false;
    dns_datagram(g->dns, &id->guest, &id->peer, p, n);
    return true;
}

static const struct net_hooks net_hooks = {on_verdict, on_named, on_ended, on_datagram, on_divert};

/* --- the name server's hooks ----------------------------------------------------------------- */

static void on_reply(void *ctx, const struct net_end *from, const struct net_end *to, const void *p,
                     size_t n)
{
    struct gate *g = ctx;
    net_send_udp(g->net, from, to, p, n);
}

static void on_decided(void *ctx, const char *name, uint16_t type, const struct policy_answer *a,
                       bool filtered)
{
    struct gate *g = ctx;
    char why[POLICY_WHY_MAX];
    policy_explain(&g->policy, a, why);
    struct gate_decision d = {.what = GATE_QUESTION,
                              .allow = a->allow && !filtered,
                              .filtered = filtered,
                              .name = name,
                              .why = why};
    report(g, &d);
}

static const struct dns_hooks dns_hooks = {on_reply, on_decided};

/* --- the host's addresses -------------------------------------------------------------------- */

/* Whether a flow was opened when its peer's address still belonged to another host. */
static bool leads_here_now(void *arg, const struct net_flow_id *id, uint64_t tag, const char *name,
                           bool shown)
{
    struct gate *g = arg;
    return !id->inbound && !is_gateway(g, &id->peer.addr) && is_own(g, &id->peer.addr) &&
           !allowed(g, id, tag, name, shown);
}

static void on_recheck(struct loop_timer *t)
{
    struct gate *g = CONTAINER_OF(t, struct gate, recheck);
    (void)net_cut(g->net, leads_here_now, g);
}

/* They come in bursts, and are handled once. */
static void on_news(struct loop_src *src, uint32_t events)
{
    struct gate *g = CONTAINER_OF(src, struct gate, news);
    route_drain(src->fd);
    loop_timer_by(g->loop, &g->recheck, RECHECK_NS);
}

static int watch_addresses(struct gate *g)
{
    int fd = route_news();
    if (fd < 0)
        return fd;
    g->news = (struct loop_src){.fd = fd, .fn = on_news};
    g->recheck.fn = on_recheck;
    int r = loop_add(g->loop, &g->news, EPOLLIN);
    if (r < 0)
        close_fd(&g->news.fd);
    return r;
}

/* --- life ------------------------------------------------------------------------------------ */

static void take_policy(struct gate *g, struct policy *policy)
{
    policy_free(&g->policy);
    g->policy = *policy;
    g->policy.strict = g->cfg.strict;
    policy_init(policy);
}

int gate_new(struct gate **ret, struct loop *l, struct link *link, const struct gate_config *c,
             struct policy *policy, gate_told told, void *ctx)
{
    struct gate *g = calloc(1, sizeof(*g));
    if (!g)
        return -ENOMEM;
    g->route = (struct route)ROUTE_NONE;
    g->news.fd = -1;
    g->loop = l;
    g->cfg = *c;
    g->cfg.dns.host4 = c->net.gateway4;
    g->cfg.dns.host6 = c->net.gateway6;
    g->cfg.dns.proxy = &g->cfg.net.proxy;
    g->told = told;
    g->ctx = ctx;
    policy_init(&g->policy);
    g->pins = pins_new();
    int r = g->pins ? route_open(&g->route) : -ENOMEM;
    if (r == 0)
        r = watch_addresses(g);
    if (r == 0)
        r = dns_new(&g->dns, l, &g->cfg.dns, &g->policy, g->pins, &dns_hooks, g);
    if (r == 0)
        r = net_new(&g->net, l, link, &g->cfg.net, &net_hooks, g);
    if (r < 0) {
        gate_free(g);
        return r;
    }
    take_policy(g, policy);
    *ret = g;
    return 0;
}

void gate_free(struct gate *g)
{
    if (!g)
        return;
    g->told = NULL;
    loop_timer_off(g->loop, &g->recheck);
    if (g->news.fd >= 0)
        loop_close(g->loop, &g->news);
    dns_free(g->dns);
    net_free(g->net);
    pins_free(g->pins);
    route_close(&g->route);
    policy_free(&g->policy);
    free(g->host);
    free(g);
}

static bool no_longer_allowed(void *arg, const struct net_flow_id *id, uint64_t tag,
                              const char *name, bool shown)
{
    return !allowed(arg, id, tag, name, shown);
}

unsigned gate_set_policy(struct gate *g, struct policy *policy, bool drop)
{
    take_policy(g, policy);
    return drop ? net_cut(g->net, no_longer_allowed, g) : 0;
}

const struct policy *gate_policy(const struct gate *g)
{
    return &g->policy;
}

struct net *gate_net(struct gate *g)
{
    return g->net;
}

const struct dns_stats *gate_dns_stats(const struct gate *g)
{
    return dns_stats(g->dns);
}
