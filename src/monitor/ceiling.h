/* The limits on what a running sandbox may be changed to: the host's policy (src/policy) as of its
 * start, or of a `policy apply` since.
 *
 * Anyone who can connect to agent.sock can ask for a wider network, for ports and for time, whether
 * or not msb itself would allow it; so the monitor keeps the limits, and refuses in the words of
 * the policy. Limits are only ever added, never lifted, so their sender need not be trusted.
 */
#pragma once

#include "net/policy.h"

#include <jansson.h>
#include <stdint.h>

enum { CEILING_LIMITS_MAX = 32 };

enum limit_kind { LIMIT_EGRESS, LIMIT_PORTS, LIMIT_LIFETIME, LIMIT_SECRETS, LIMIT_KINDS };

struct limit {
    enum limit_kind kind;
    uint64_t most;                          /* ports, or milliseconds from start to stop */
    struct policy egress;                   /* all of whose rules allow */
    struct strlist names;                   /* wildcards, one of which must match a secret's name */
    char *field, *asked, *allowed, *origin; /* for refusals; asked: NULL = what was asked for */
};

struct ceiling {
    struct limit limit[CEILING_LIMITS_MAX];
    size_t n;
};

/* `limits` is made by policy_limits(), or a client claims so. A limit that is stricter than an
 * existing one replaces it. On failure, some may have been added. */
int ceiling_add(struct ceiling *c, const json_t *limits, struct err *e);
/* Only tests need it: a monitor has its limits until it exits. */
void ceiling_free(struct ceiling *c);

/* The lowest of all limits of that kind; UINT64_MAX: there is none. */
uint64_t ceiling_most(const struct ceiling *c, enum limit_kind kind);
/* ERR_POLICY unless all limits of that kind allow it. */
int ceiling_hold_number(const struct ceiling *c, enum limit_kind kind, uint64_t v, struct err *e);
int ceiling_hold_secret(const struct ceiling *c, const char *name, struct err *e);
int ceiling_hold_policy(const struct ceiling *c, const struct policy *p, struct err *e);
/* 1: *ret is p, narrowed to fit all limits; 0: p is within them. */
int ceiling_narrow(const struct ceiling *c, const struct policy *p, struct policy *ret);
