/* Changes of a sandbox's network, running or not: its policy, its published ports.
 *
 * Under the name's lock, in this order: what is to be is checked; what must be had of the host (a
 * port) is taken; the spec is written, as it is at every start; a running sandbox is told. If the
 * sandbox refuses, the old spec is put back. So a success means both, a failure neither; and who is
 * killed in between leaves a spec that the next start, or the same change made again, brings into
 * force.
 */
#ifndef MSB_SANDBOX_NET_CHANGE_H
#define MSB_SANDBOX_NET_CHANGE_H

#include "store/store.h"

struct net_policy_change {
    /* Profile, rules and defaults count. */
    const struct spec_net *policy;
    bool add;  /* before what is there, instead of in its place */
    bool drop; /* cut the flows that are no longer allowed */
    /* What came of it. */
    bool live; /* it is in force now; else from the next start on */
    unsigned cut;
};

int sandbox_net_set(const struct store *s, const char *name, struct net_policy_change *c,
                    struct err *e);

/* [BIND:]HOST:GUEST[/udp], as for `create`; what was bound is appended to *ret (malloc'd), n of
 * them. Either all of a range or none. Of a sandbox that does not run nothing is bound. */
int sandbox_port_add(const struct store *s, const char *name, const char *text,
                     struct spec_port **ret, size_t *n, struct err *e);
/* [BIND:]HOST[/udp]: the host's side. */
int sandbox_port_remove(const struct store *s, const char *name, const char *text, struct err *e);

#endif
