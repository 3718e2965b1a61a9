/* The sandbox's name server, at the gateway's port 53, over UDP and TCP.
 *
 * A question is checked against the policy first: a denied one is answered with NXDOMAIN here, and
 * no packet leaves. An allowed one goes to the host's resolvers, from a fresh socket (so the host's
 * kernel picks a random port and accepts answers only from that resolver) with a random id, by UDP
 * and, if the answer is truncated, by TCP. Answers are rewritten (dns_msg.h); addresses that no
 * public name should resolve to (rebinding) are filtered out unless a rule names them; addresses
 * that pass are pinned to the name that was asked for (pins.h).
 *
 * Runs on the loop's thread. Questions in flight, their rate and connections are bounded.
 */
#pragma once

#include "net/dns_msg.h"
#include "net/pins.h"
#include "net/policy.h"
#include "net/socks.h"
#include "util/loop.h"

enum {
    DNS_UPSTREAMS_MAX = 3,
    DNS_QUERIES_MAX = 64,
    DNS_CLIENTS_MAX = 16,
    DNS_BURST = 200,     /* questions that may go upstream at once */
    DNS_PER_SECOND = 50, /* ... and per second in the long run */
    DNS_TIMEOUT_MS = 5000,
};

#define DNS_HOST_NAME "host.microsandbox.internal"

struct dns;

struct dns_config {
    struct net_end upstream[DNS_UPSTREAMS_MAX];
    unsigned n_upstreams;
    unsigned timeout_ms; /* 0: the default; for all upstreams together */
    bool allow_rebind;
    /* Upstreams are queried through it, over TCP, except those on the host's loopback, which no
     * proxy can reach. NULL, or version 0: none. */
    const struct socks_config *proxy;
    struct net_addr host4, host6; /* what DNS_HOST_NAME resolves to; all zero: nothing */
};

struct dns_hooks {
    /* Sends a datagram to the guest. */
    void (*reply)(void *ctx, const struct net_end *from, const struct net_end *to, const void *p,
                  size_t n);
    /* Optional: reports a decision; filtered: an answer was withheld. */
    void (*decided)(void *ctx, const char *name, uint16_t type, const struct policy_answer *a,
                    bool filtered);
};

struct dns_stats {
    uint64_t questions, denied, upstream, filtered, failed, limited, malformed;
};

/* The policy and the pins must outlive it. */
int dns_new(struct dns **ret, struct loop *l, const struct dns_config *c,
            const struct policy *policy, struct pins *pins, const struct dns_hooks *hooks,
            void *ctx);
void dns_free(struct dns *d);
const struct dns_stats *dns_stats(const struct dns *d);

/* A datagram from the guest to the gateway. */
void dns_datagram(struct dns *d, const struct net_end *guest, const struct net_end *gateway,
                  const void *p, size_t n);
/* A TCP connection from the guest: the socket for its flow, or -errno. */
int dns_connect(struct dns *d);
