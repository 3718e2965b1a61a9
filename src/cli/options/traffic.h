/* Rate limits, a proxy and the host's certificate authorities: how allowed traffic leaves. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"

extern const struct opt_group traffic_group;

/* For the help of verbs that take these options. */
#define TRAFFIC_DETAILS                                                                            \
    "Rate limits: at most SIZE bytes or COUNT packets pass per TIME (default: one second), plus "  \
    "a "                                                                                           \
    "burst, once. TCP slows down; datagrams beyond the limit are dropped. Connections share the "  \
    "rate evenly. With --proxy all outgoing traffic is TCP through the proxy, to addresses that "  \
    "the policy allows; names are resolved through it, too, unless the host's resolver is on its " \
    "loopback interface."

/* All options of the group; bad values are usage errors. */
int traffic_options(const struct args *a, struct spec_net *n, struct err *e);
