/* A sandbox's network, as requested: policy, name servers, limits, published ports.
 *
 * Texts are kept as the user wrote them and checked when they are set; spec_net_policy() compiles
 * them (net/policy.h). What is allowed by default:
 *
 *     no profile, no rules, no default for egress   public addresses
 *     rules                                         only these
 *     a default for egress                          that, after rules and profile
 *     ingress                                       whatever comes through a published port
 */
#pragma once

#include "net/dns.h"
#include "net/policy.h"
#include "spec/bound.h"
#include "spec/pool.h"
#include "spec/proxy.h"
#include "spec/rate.h"
#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SPEC_PUBLISH_MAX = 256, /* published ports, ranges expanded */
    SPEC_CONNECTIONS_DEFAULT = 256,
    SPEC_CONNECTIONS_MAX = 65535,
    SPEC_DNS_TIMEOUT_MAX_MS = 60000,
    SPEC_PORT_TEXT_MAX = END_TEXT_MAX + 16,
};

enum net_default { NET_DEFAULT_UNSET, NET_DEFAULT_ALLOW, NET_DEFAULT_DENY };

/* A host port that leads to a guest port. */
struct spec_port {
    struct net_addr bind;
    uint16_t host;  /* 0: any free port; in a state: the one that was chosen */
    uint16_t guest; /* never 0 */
    uint8_t proto;  /* PROTO_TCP or PROTO_UDP */
};

struct spec_net {
    bool off;             /* no network card at all */
    char *profile;        /* "public,host"; NULL = not set */
    struct strlist rules; /* each a comma-separated list, in order */
    enum net_default egress, ingress;
    bool strict;
    uint32_t max_connections;
    struct net_end nameserver[DNS_UPSTREAMS_MAX]; /* none: the host's own */
    unsigned n_nameservers;
    uint32_t dns_timeout_ms;
    bool allow_rebind;
    struct spec_port *ports;
    size_t n_ports;
    struct rate_limits egress_rate, ingress_rate;
    struct spec_proxy proxy;
    bool trust_host_cas;
    struct addr_pool pool4, pool6; /* where its addresses come from; none = the default ones */
    uint32_t slot;                 /* which of their networks; derived from the sandbox's name */
    struct spec_bound bound;
};

void spec_net_init(struct spec_net *n);
void spec_net_free(struct spec_net *n); /* and reinitializes it */

/* Each checks and copies; on failure, nothing has changed. */
int spec_net_set_profile(struct spec_net *n, const char *text, struct err *e);
int spec_net_add_rules(struct spec_net *n, const char *text, struct err *e);
int spec_net_add_nameserver(struct spec_net *n, const char *text, struct err *e); /* IP[:PORT] */
/* [BIND:]HOST:GUEST[/tcp|/udp]; HOST and GUEST may be ranges of the same length, HOST may be 0. */
int spec_net_add_ports(struct spec_net *n, const char *text, struct err *e);
int spec_net_add_port(struct spec_net *n, const struct spec_port *p, struct err *e);
/* Checks that the parts fit together and make one policy. */
int spec_net_validate(const struct spec_net *n, struct err *e);

/* The policy that results. *p is initialized here; on failure there is nothing to free. */
int spec_net_policy(const struct spec_net *n, struct policy *p, struct err *e);
/* There are rules and no profile: what they do not allow is denied, public addresses included. */
bool spec_net_is_allowlist(const struct spec_net *n);

/* The host cannot bind both. */
bool spec_port_clashes(const struct spec_port *a, const struct spec_port *b);
/* "127.0.0.1:8080->80/tcp" */
void spec_port_format(const struct spec_port *p, char out[SPEC_PORT_TEXT_MAX]);
json_t *spec_port_to_json(const struct spec_port *p);
int spec_port_from_json(const json_t *j, struct spec_port *ret);

/* "network" of the documented layout. `full`: with all keys, for readers of a configuration; else
 * only what is needed to read it back, possibly nothing: {}. NULL: out of memory. */
json_t *spec_net_to_json(const struct spec_net *n, bool full);
/* Reads "network" of the spec `j`. *n is initialized before; free it after a failure, too. */
int spec_net_from_json(struct spec_net *n, const json_t *j, struct err *e);
