/* Address pools: each sandbox takes one network from each, chosen by its name: a /30 for IPv4, a
 * /64 for IPv6. No two sandboxes share a link, so two of them may take the same network. */
#pragma once

#include "util/addr.h"
#include "util/err.h"

enum { POOL_TEXT_MAX = ADDR_TEXT_MAX + 4, POOL_BITS4 = 30, POOL_BITS6 = 64 };

struct addr_pool {
    struct net_addr addr; /* its first address */
    uint8_t bits;         /* of its family; 0 = there is no pool */
};

/* "10.9.0.0/16", "fd00:1::/48"; `v4`: which of the two is expected. */
int spec_pool_parse(const char *text, bool v4, struct addr_pool *ret, struct err *e);
void spec_pool_format(const struct addr_pool *p, char out[POOL_TEXT_MAX]);
/* The two ends of network number `slot`. */
void spec_pool_ends(const struct addr_pool *p, uint32_t slot, struct net_addr *gateway,
                    struct net_addr *guest);
