/* "Would a connection to that target be allowed?", answered by a policy alone, or by the gate of a
 * running sandbox (gate_explain), which also knows what names resolved to.
 *
 * A name is two questions: may it be resolved, and may its addresses be reached. Without addresses
 * the second one is answered for a public address that no rule lists.
 */
#pragma once

#include "net/policy.h"

enum { EXPLAIN_PEERS_MAX = 16 };

struct explain_target {
    char name[POLICY_NAME_MAX]; /* "": it is an address */
    struct net_addr addr;
    uint16_t port;
    uint8_t proto; /* PROTO_TCP or PROTO_UDP */
};

struct explain_peer {
    struct net_addr addr;
    bool allow;
    char why[POLICY_WHY_MAX];
};

struct explain_answer {
    bool allow; /* the overall answer */
    char why[POLICY_WHY_MAX];
    bool is_name;
    bool may_ask;
    char ask_why[POLICY_WHY_MAX];
    size_t n_peers; /* of a name: the addresses that it is pinned to now */
    struct explain_peer peer[EXPLAIN_PEERS_MAX];
};

/* URL, HOST, HOST:PORT, ADDRESS, ADDRESS:PORT, [ADDRESS6]:PORT. A URL without a port has that of
 * its scheme; anything else without one means 443. */
int explain_parse(const char *text, bool udp, struct explain_target *ret, struct err *e);

void explain_by_policy(const struct policy *p, const struct explain_target *t,
                       struct explain_answer *ret);

/* Corrects the answer for a sandbox behind a proxy; call last. */
void explain_with_proxy(const struct explain_target *t, struct explain_answer *a);
#define EXPLAIN_PROXY "denied: only TCP goes through the proxy"

/* Why a flow that the rules allow is denied: it is QUIC, whose first bytes show no name, and names
 * decide. NULL: it is not denied. */
const char *explain_refusal(const struct policy_answer *a, uint8_t proto, uint16_t port);
