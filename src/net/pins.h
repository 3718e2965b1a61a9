/* Which addresses this sandbox has resolved from which names, for the lifetime of the answers.
 * Rules with a name cover only these addresses. Bounded: the entry that expires next is evicted. */
#pragma once

#include "util/addr.h"

#include <stddef.h>

enum {
    PINS_MAX = 4096,
    PIN_LEAST_S = 60, /* programs use an address a little longer than its TTL */
    PIN_MOST_S = 86400,
};

struct pins;

struct pins *pins_new(void);
void pins_free(struct pins *p);
/* name: lower case, no final dot. */
void pins_add(struct pins *p, const struct net_addr *a, const char *name, uint32_t ttl_s,
              uint64_t now_ns);
/* The name that the address is pinned to, if it is `name` or (suffix) one below it; else NULL. */
const char *pins_match(const struct pins *p, const struct net_addr *a, const char *name,
                       bool suffix, uint64_t now_ns);
/* Gets the addresses of a name, up to max; returns how many. */
size_t pins_addresses(const struct pins *p, const char *name, struct net_addr *ret, size_t max,
                      uint64_t now_ns);
/* One of the address's names, or NULL; for logs. */
const char *pins_name(const struct pins *p, const struct net_addr *a, uint64_t now_ns);
