#include "net/pins.h"

#include <stdlib.h>

#include "net/policy.h"
#include "util/cleanup.h"

struct pin {
    struct net_addr addr;
    uint64_t until_ns; /* 0: free */
    char *name;
};

struct pins {
    struct pin pin[PINS_MAX];
    unsigned n; /* entries ever used: the rest is not searched */
};

struct pins *pins_new(void)
{
    return calloc(1, sizeof(struct pins));
}

void pins_free(struct pins *p)
{
    for (unsigned i = 0; p && i < p->n; i++)
        free(p->pin[i].name);
    free(p);
}

/* The entry for that pair, else a free one, else the one that expires first. */
static struct pin *place(struct pins *p, const struct net_addr *a, const char *name, uint64_t now)
{
    struct pin *spare = NULL, *first = &p->pin[0];
    for (unsigned i = 0; i < p->n; i++) {
        struct pin *k = &p->pin[i];
        if (k->name && addr_equal(&k->addr, a) && strcmp(k->name, name) == 0)
            return k;
        if (k->until_ns <= now)
            spare = k;
        if (k->until_ns < first->until_ns)
            first = k;
    }
    if (spare)
        return spare;
    return p->n < PINS_MAX ? &p->pin[p->n++] : first;
}

void pins_add(struct pins *p, const struct net_addr *a, const char *name, uint32_t ttl_s,
              uint64_t now)
{
    struct pin *k = place(p, a, name, now);
    uint64_t until =
        now + MIN(MAX(ttl_s, (uint32_t)PIN_LEAST_S), (uint32_t)PIN_MOST_S) * 1000000000ULL;
    if (k->name && addr_equal(&k->addr, a) && strcmp(k->name, name) == 0) {
        k->until_ns = MAX(k->until_ns, until);
        return;
    }
    char *copy = strdup(name);
    if (!copy)
        return; /* not pinned, so not allowed */
    free(k->name);
    *k = (struct pin){.addr = *a, .until_ns = until, .name = copy};
}

const char *pins_match(const struct pins *p, const struct net_addr *a, const char *name,
                       bool suffix, uint64_t now)
{
    for (unsigned i = 0; i < p->n; i++) {
        const struct pin *k = &p->pin[i];
        if (k->until_ns > now && addr_equal(&k->addr, a) &&
            policy_name_matches(k->name, name, suffix))
            return k->name;
    }
    return NULL;
}

const char *pins_name(const struct pins *p, const struct net_addr *a, uint64_t now)
{
    for (unsigned i = 0; i < p->n; i++)
        if (p->pin[i].until_ns > now && addr_equal(&p->pin[i].addr, a))
            return p->pin[i].name;
    return NULL;
}

size_t pins_addresses(const struct pins *p, const char *name, struct net_addr *ret, size_t max,
                      uint64_t now)
{
    size_t n = 0;
    for (unsigned i = 0; i < p->n && n < max; i++)
        if (p->pin[i].until_ns > now && strcmp(p->pin[i].name, name) == 0)
            ret[n++] = p->pin[i].addr;
    return n;
}
