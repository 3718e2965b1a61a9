/* What an address leads to: for the groups of a network policy and for the redirects of a registry.
 * Each address is in one class. A form with an IPv4 address inside (mapped, compatible, NAT64,
 * 6to4) has the class of that address, so no spelling of 127.0.0.1 is public. */
#ifndef MSB_UTIL_ADDR_CLASS_H
#define MSB_UTIL_ADDR_CLASS_H

#include "util/addr.h"

enum addr_class {
    CLASS_PUBLIC,
    CLASS_PRIVATE,    /* RFC 1918, carrier-grade NAT, unique local, site-local */
    CLASS_LOOPBACK,   /* 127/8, 0/8 (which Linux dials as itself), ::1, :: */
    CLASS_LINK_LOCAL, /* 169.254/16, fe80::/10, without metadata */
    CLASS_META,       /* cloud metadata services, in whatever range */
    CLASS_MULTICAST,  /* and broadcast */
    CLASS_RESERVED,   /* documentation, benchmarks, future use: in no group but "any" */
    CLASS_MAX,
};

enum addr_class addr_classify(const struct net_addr *a);

#endif
