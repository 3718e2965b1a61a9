/* Changes to a sandbox's network, running or not: its policy and its published ports.
 *
 * Under the name's lock, in this order: the change is checked; what it needs from the host (a port)
 * is taken; the spec is written, for all later starts; a running sandbox is told. If the sandbox
 * refuses, the old spec is restored. So success means that both have changed, failure that neither
 * has. If the process is killed in between, the new spec takes effect at the next start, or when
 * the change is repeated.
 */
#pragma once

#include "store/store.h"

struct net_policy_change {
    const struct spec_net *policy; /* its profile, rules and defaults */
    bool add;                      /* before the existing rules, instead of replacing them */
    bool drop;                     /* cut flows that are no longer allowed */
    /* Results. */
    bool live; /* takes effect now; else at the next start */
    unsigned cut;
};

int sandbox_net_set(const struct store *s, const char *name, struct net_policy_change *c,
                    struct err *e);

/* [BIND:]HOST:GUEST[/udp], as for `create`: all of a range or none. The ports are appended to *ret
 * (malloc'd, n of them); they are bound only if the sandbox is running. */
int sandbox_port_add(const struct store *s, const char *name, const char *text,
                     struct spec_port **ret, size_t *n, struct err *e);
/* text: [BIND:]HOST[/udp], the host's side. */
int sandbox_port_remove(const struct store *s, const char *name, const char *text, struct err *e);
