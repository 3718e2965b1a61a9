#include "spec/pool.h"

#include "util/addr_class.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { POOL_BITS_MIN = 8 };

static int bad_pool(const char *text, bool v4, const char *why, struct err *e)
{
    err_set(e, EINVAL, "invalid %s pool '%.64s': %s", v4 ? "IPv4" : "IPv6", text, why);
    err_hint(e, "expected a network such as %s",
             v4 ? "10.9.0.0/16, of /8 to /30" : "fd00:1::/48, of /8 to /64");
    return -EINVAL;
}

/* Zeroes what is after the first `bits` bits. */
static void cut(struct net_addr *a, unsigned bits)
{
    for (unsigned i = bits; i < 128; i++)
        a->b[i / 8] &= (uint8_t) ~(0x80 >> i % 8);
}

/* Addresses with a special meaning to a guest, or to us: loopback, link-local, multicast, and cloud
 * services. */
static bool is_special(const struct net_addr *a)
{
    enum addr_class c = addr_classify(a);
    bool usable = c == CLASS_PUBLIC || c == CLASS_PRIVATE || c == CLASS_RESERVED;
    return !usable || (!addr_is4(a) && a->b[0] == 0);
}

int spec_pool_parse(const char *text, bool v4, struct addr_pool *ret, struct err *e)
{
    char address[ADDR_TEXT_MAX];
    struct addr_pool p = {0};
    uint64_t bits;
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    if (n >= sizeof(address))
        return bad_pool(text, v4, "too long", e);
    memcpy(address, text, n);
    address[n] = '\0';
    if (addr_parse(address, &p.addr) < 0 || addr_is4(&p.addr) != v4)
        return bad_pool(text, v4, "not an address of that family", e);
    unsigned most = v4 ? POOL_BITS4 : POOL_BITS6;
    if (!slash || parse_u64(slash + 1, &bits) < 0 || bits < POOL_BITS_MIN || bits > most)
        return bad_pool(text, v4,
                        v4 ? "its prefix must be /8 to /30" : "its prefix must be /8 to /64", e);
    p.bits = (uint8_t)bits;
    cut(&p.addr, p.bits + (v4 ? 96U : 0));
    if (is_special(&p.addr))
        return bad_pool(text, v4, "not addresses that a guest can have", e);
    *ret = p;
    return 0;
}

void spec_pool_format(const struct addr_pool *p, char out[POOL_TEXT_MAX])
{
    char address[ADDR_TEXT_MAX];
    addr_format(&p->addr, address);
    (void)snprintf(out, POOL_TEXT_MAX, "%s/%u", address, p->bits);
}

void spec_pool_ends(const struct addr_pool *p, uint32_t slot, struct net_addr *gateway,
                    struct net_addr *guest)
{
    bool v4 = addr_is4(&p->addr);
    unsigned to_choose = (v4 ? POOL_BITS4 : POOL_BITS6) - p->bits;
    uint64_t k = to_choose < 32 ? slot & (((uint64_t)1 << to_choose) - 1) : slot;
    unsigned last = v4 ? 15 : 7; /* the byte in which the number of the network ends */
    k <<= v4 ? 2 : 0;
    struct net_addr a = p->addr;
    for (unsigned i = 0; i < 5 && k; i++, k >>= 8)
        a.b[last - i] |= (uint8_t)k;
    *gateway = *guest = a;
    gateway->b[15] |= 1;
    guest->b[15] |= 2;
}
