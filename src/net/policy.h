/* Which flows a sandbox may have: an ordered list of rules, the first match wins.
 *
 *     <allow|deny>[:egress|:ingress|:any]@TARGET[:PROTO[:PORTS]]      comma separated
 *
 *     TARGET  an address or CIDR (IPv6 in brackets), a host name, *.SUFFIX or suffix=SUFFIX (both
 *             with and without labels in front), domain=NAME, dns (questions to the gateway), or
 *             a group: public private loopback link-local meta multicast host any
 *     PROTO   tcp udp icmpv4 icmpv6 any        PORTS  N, LO-HI, any
 *
 * Profiles are lists of groups (`public,host`), or `all`, or `none`. Rules come before profiles.
 * With rules and no profile, only what the rules allow is allowed; with neither, `public` is.
 *
 * A rule with a name matches only addresses that this sandbox has resolved from such a name, and
 * never one that is not public: that takes a rule that names the address or its group. A rule that
 * denies a name also matches any flow that shows it, wherever it goes. A rule that denies an IPv4
 * address also matches the IPv6 addresses that lead there (addr_inner4).
 *
 * A strict policy opens nothing to a name that could not show it: TCP only, unless the rule says
 * which protocol.
 */
#pragma once

#include "util/addr_class.h"
#include "util/err.h"
#include "util/strlist.h"

enum {
    POLICY_RULES_MAX = 256,
    POLICY_NAME_MAX = 254, /* of a host, with its zero */
    POLICY_WHY_MAX = 400,
};

enum policy_dir { POLICY_EGRESS = 1, POLICY_INGRESS = 2, POLICY_BOTH = 3 };

enum target_kind {
    TARGET_ANY,
    TARGET_GROUP,
    TARGET_HOST,
    TARGET_CIDR,
    TARGET_DOMAIN,
    TARGET_SUFFIX,
    TARGET_DNS
};

struct policy_rule {
    bool allow;
    uint8_t dir; /* enum policy_dir */
    enum target_kind kind;
    enum addr_class group;
    struct net_addr addr;
    uint8_t bits;  /* of the mapped form */
    uint8_t proto; /* 0: any */
    uint16_t lo, hi;
    char name[POLICY_NAME_MAX];
    char *text; /* as written by the user */
};

struct policy {
    struct policy_rule *rule;
    size_t n;
    bool default_egress, default_ingress; /* allowed when no rule matches */
    bool strict;
};

void policy_init(struct policy *p);
void policy_free(struct policy *p);
/* Each adds to the policy; on failure, nothing is added. */
int policy_add_rules(struct policy *p, const char *text, struct err *e);
int policy_add_profile(struct policy *p, const char *text, struct err *e);

/* A flow to ask about. `named` says whether `name` is one of the names that the peer's address was
 * resolved from; it is called for rules with names. NULL: it has none. */
struct policy_flow {
    enum policy_dir dir; /* one of the two */
    uint8_t proto;       /* PROTO_* */
    struct net_addr peer;
    uint16_t port; /* the peer's, or for ingress the guest's */
    bool host;     /* the peer is the gateway, which stands for the host, or a host address */
    bool gateway;  /* ... and it is the gateway, which rules for addresses do not open */
    bool dns;      /* ... and it is the gateway's name server */
    bool (*named)(void *ctx, const struct net_addr *peer, bool suffix, const char *name);
    void *ctx;
    const char *shown; /* the name in its first bytes (lower case, no final dot), or NULL */
};

struct policy_answer {
    bool allow;
    int rule;         /* index, or -1: the default */
    bool by_name;     /* allowed by a rule with a name: what the flow shows must agree */
    bool watch;       /* an earlier rule denies a name: what the flow shows decides */
    bool proto_named; /* the rule names the protocol */
    bool too_strict;  /* denied, though a name allows it: it could not show that name */
};

struct policy_answer policy_decide(const struct policy *p, const struct policy_flow *f);
/* Whether that name (lower case, no final dot) may be looked up. */
struct policy_answer policy_decide_name(const struct policy *p, const char *name);
/* Whether the sandbox may use an address that no answer should contain (rebinding): only if a rule
 * names it. */
bool policy_names_address(const struct policy *p, const struct net_addr *a);
/* "allowed by rule 3: allow@example.com", "denied: no rule allows it" */
void policy_explain(const struct policy *p, const struct policy_answer *a,
                    char out[POLICY_WHY_MAX]);

/* Whether everything that p lets out is also let out by a rule of `ceiling`, all of whose rules
 * allow. Sound, not complete: a rule that is only covered by several of the ceiling's rules
 * together does not count as within it, and p's earlier denials are not considered. If not, *rule
 * is the first rule beyond it; -1: the default. */
bool policy_within(const struct policy *p, const struct policy *ceiling, int *rule);
/* Makes the rules of a policy that is within the ceiling and keeps as much of p as can be
 * determined; with them, anything that no rule matches must be denied. Appends to *rules;
 * -ENOMEM. */
int policy_narrow(const struct policy *p, const struct policy *ceiling, struct strlist *rules);

/* Whether name is `want` (suffix: or below it). Both lower case. */
bool policy_name_matches(const char *name, const char *want, bool suffix);
/* Writes it to out in lower case, without a final dot; false if it is not a host name. */
bool policy_name_normal(const char *s, char out[POLICY_NAME_MAX]);
