/* Classes of addresses, for the groups in a network policy and for a registry's redirects. Each
 * address is in one class. A form that stands for an IPv4 address (mapped, compatible, NAT64, 6to4)
 * has that address's class, so no spelling of 127.0.0.1 is public. A form that may or may not lead
 * to one (NAT64 for local use, Teredo, ISATAP) has the stricter of the two classes. */
#pragma once

#include "util/addr.h"

enum addr_class {
    CLASS_PUBLIC,
    CLASS_PRIVATE,    /* RFC 1918, carrier-grade NAT, unique local, site-local */
    CLASS_LOOPBACK,   /* 127/8, 0/8 (which Linux dials as itself), ::1, :: */
    CLASS_LINK_LOCAL, /* 169.254/16, fe80::/10, without metadata */
    CLASS_META,       /* cloud metadata services, in any range */
    CLASS_MULTICAST,  /* and broadcast */
    CLASS_RESERVED,   /* documentation, benchmarks, future use: in no group but "any" */
    CLASS_MAX,
};

enum addr_class addr_classify(const struct net_addr *a);

/* The IPv4 addresses to which an IPv6 address may lead through a translator or a tunnel; returns
 * how many. None for IPv4 addresses, which lead to themselves. */
enum { ADDR_INNER_MAX = 4 };
unsigned addr_inner4(const struct net_addr *a, struct net_addr ret[ADDR_INNER_MAX]);
