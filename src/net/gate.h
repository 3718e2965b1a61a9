/* The sandbox's access to the network: stack, policy, name server and pins combined.
 *
 * For each new flow: the gateway's port 53 is the name server; the rest of the gateway is the
 * host's loopback, if a rule allows `host`; everything else is checked against the policy, with the
 * names that this sandbox has resolved. A flow that is allowed by name must not contradict it: if
 * its first bytes show a name (TLS, HTTP), the rules must allow the flow for that name and the
 * address must have been resolved from it. Where rules deny names, a flow that is allowed by
 * address must not show one of them. QUIC hides the name, so where names decide, UDP port 443 is
 * closed; programs fall back to TCP.
 *
 * With a proxy (net_config), allowed TCP flows and DNS questions go through it, to the address that
 * was allowed; other protocols are denied. The host itself is reached directly.
 *
 * Runs on the loop's thread. Every decision is reported, with the rule that made it.
 */
#pragma once

#include "net/dns.h"
#include "net/explain.h"
#include "net/net.h"
#include "net/policy.h"

struct gate;

/* Hosts whose TLS connections are intercepted, by the process that gets them (gate_config.divert):
 * connections on these ports that show such a name, to an address that was resolved from it.
 * Connections to any other address are denied; so is UDP to these ports (except where QUIC is
 * allowed), so that programs fall back to TCP. */
enum { GATE_HOSTS_MAX = 1024, GATE_PORTS_MAX = 8 };
struct gate_host {
    char name[POLICY_NAME_MAX];
    bool suffix; /* also anything below it */
    bool bypass; /* not intercepted */
    bool plain;  /* http:// (port 80), too */
    bool quic;   /* UDP is not denied because of it */
};

struct gate_config {
    /* See net_hooks. NULL: nothing is intercepted. */
    int (*divert)(void *ctx, const struct net_flow_id *id, const char *name, int fd);
    struct net_config net;
    struct dns_config dns; /* host4, host6 (the gateway) and the proxy are filled in */
    bool strict;           /* where names decide, a flow must show a name */
    /* Ports besides 443 on which flows to those hosts are intercepted. */
    uint16_t tls_port[GATE_PORTS_MAX];
    size_t n_tls_ports;
};

enum gate_what {
    GATE_FLOW,     /* a flow was opened, or not */
    GATE_SHOWN,    /* its first bytes named a host */
    GATE_QUESTION, /* a name was asked for */
    GATE_ENDED,
    GATE_SECRET, /* the interceptor refused something, or had to give up */
};

/* For logs. Pointers are valid during the call. */
struct gate_decision {
    enum gate_what what;
    bool allow;
    bool filtered;                /* GATE_QUESTION: the answer was withheld */
    bool violation;               /* GATE_SECRET: a secret was about to go where it may not */
    const struct net_flow_id *id; /* NULL for questions */
    const char *name;             /* the peer's name if known, or "" */
    const char *why;              /* "allowed by rule 3: ...", or how it ended */
    uint64_t to_host, to_guest;   /* GATE_ENDED: bytes */
    uint64_t ns;                  /* GATE_ENDED: how long it lasted */
};

typedef void (*gate_told)(void *ctx, const struct gate_decision *d);

/* On success, takes what *policy holds and leaves it empty. */
int gate_new(struct gate **ret, struct loop *l, struct link *link, const struct gate_config *c,
             struct policy *policy, gate_told told, void *ctx);
void gate_free(struct gate *g);

/* Takes the policy, for new flows. With `drop`, cuts open flows that it does not allow for the names
 * that they showed, or for which they were opened; returns how many. */
unsigned gate_set_policy(struct gate *g, struct policy *policy, bool drop);
const struct policy *gate_policy(const struct gate *g);
/* Whether such a flow would be allowed now. */
struct policy_answer gate_ask(struct gate *g, const struct net_flow_id *id,
                              char why[POLICY_WHY_MAX]);
/* The same for display: with every address that is pinned to a name. */
void gate_explain(struct gate *g, const struct explain_target *t, struct explain_answer *ret);
/* Whether a flow may show that name ("": none). `tag`: why it was inspected. */
enum { GATE_BY_NAME = 1, GATE_WATCHED = 2, GATE_LOOKED_INTO = 4 };
enum net_passage gate_shown(struct gate *g, const struct net_flow_id *id, uint64_t tag,
                            enum sniff_kind kind, const char *name);
/* Takes the list (free()d later) of hosts to intercept, for new flows. */
void gate_set_hosts(struct gate *g, struct gate_host *list, size_t n);
/* Reports the interceptor's message about a flow, as if it were the gate's own decision. */
void gate_tell(struct gate *g, const struct gate_decision *d);
struct net *gate_net(struct gate *g); /* for published ports and counters */
const struct dns_stats *gate_dns_stats(const struct gate *g);
