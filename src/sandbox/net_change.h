/* Changes of a sandbox's network, running or not: its policy, its published ports.
 *
 * Under the name's lock, in this order: the change is checked; what it needs of the host (a port) is
 * taken; the spec is written, to be used at every start; a running sandbox is told. If the sandbox
 * refuses, the old spec is restored. So success means both, failure neither. A process that is killed
 * in between leaves a spec that takes effect at the next start, or when the change is made again.
 */
#pragma once

#include "store/store.h"

struct net_policy_change {
    const struct spec_net *policy; /* its profile, rules and defaults */
    bool add;                      /* before the existing rules, instead of replacing them */
    bool drop;                     /* cut flows that are no longer allowed */
    /* Results. */
    bool live; /* in force now; else from the next start on */
    unsigned cut;
};

int sandbox_net_set(const struct store *s, const char *name, struct net_policy_change *c,
                    struct err *e);

/* [BIND:]HOST:GUEST[/udp], as for `create`: all of a range or none. The ports are appended to *ret
 * (malloc'd, n of them); they are bound only if the sandbox is running. */
int sandbox_port_add(const struct store *s, const char *name, const char *text,
                     struct spec_port **ret, size_t *n, struct err *e);
/* [BIND:]HOST[/udp]: the host's side. */
int sandbox_port_remove(const struct store *s, const char *name, const char *text, struct err *e);
