#include "util/addr_class.h"

#include "util/cleanup.h"

struct range {
    uint8_t b[16];
    uint8_t bits;
    uint8_t class;
};

/* The first match applies. */
static const struct range ranges4[] = {
    {{169, 254, 169, 254}, 32, CLASS_META},
    {{169, 254, 170, 2}, 32, CLASS_META}, /* container credentials */
    {{169, 254, 170, 23}, 32, CLASS_META},
    {{100, 100, 100, 200}, 32, CLASS_META},
    {{168, 63, 129, 16}, 32, CLASS_META}, /* Azure's wire server */
    {{192, 0, 0, 192}, 32, CLASS_META},
    {{127}, 8, CLASS_LOOPBACK},
    {{0}, 8, CLASS_LOOPBACK},
    {{10}, 8, CLASS_PRIVATE},
    {{172, 16}, 12, CLASS_PRIVATE},
    {{192, 168}, 16, CLASS_PRIVATE},
    {{100, 64}, 10, CLASS_PRIVATE},
    {{169, 254}, 16, CLASS_LINK_LOCAL},
    {{224}, 4, CLASS_MULTICAST},
    {{255, 255, 255, 255}, 32, CLASS_MULTICAST},
    {{240}, 4, CLASS_RESERVED},
    {{192, 0, 0}, 24, CLASS_RESERVED},
    {{192, 0, 2}, 24, CLASS_RESERVED},
    {{192, 88, 99}, 24, CLASS_RESERVED},
    {{198, 18}, 15, CLASS_RESERVED},
    {{198, 51, 100}, 24, CLASS_RESERVED},
    {{203, 0, 113}, 24, CLASS_RESERVED},
};

static const struct range ranges6[] = {
    {{0xfd, 0, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54}, 128, CLASS_META},
    {{0xfd, 0x20, 0, 0xce, [14] = 0x02, [15] = 0x54}, 128, CLASS_META},
    {{0xfe, 0x80}, 10, CLASS_LINK_LOCAL},
    {{0xfe, 0xc0}, 10, CLASS_PRIVATE},
    {{0xfc}, 7, CLASS_PRIVATE},
    {{0xff}, 8, CLASS_MULTICAST},
    {{0, 0x64, 0xff, 0x9b, 0, 1}, 48, CLASS_PRIVATE}, /* NAT64 for local use */
    {{0x20, 0x01, 0x0d, 0xb8}, 32, CLASS_RESERVED},
    {{0x20, 0x01}, 23, CLASS_RESERVED}, /* Teredo and other experiments */
    {{0x3f, 0xff}, 20, CLASS_RESERVED},
    {{0x20}, 3, CLASS_PUBLIC},
    {{0}, 0, CLASS_RESERVED},
};

static enum addr_class lookup(const struct range *r, size_t n, const uint8_t *b, size_t size)
{
    struct net_addr a = {0}, in;
    memcpy(a.b, b, size);
    for (size_t i = 0; i < n; i++) {
        memcpy(in.b, r[i].b, sizeof(in.b));
        if (addr_prefix_equal(&a, &in, r[i].bits))
            return r[i].class;
    }
    return CLASS_PUBLIC;
}

/* --- IPv4 addresses inside IPv6 ones ----------------------------------------------------------- */

static bool starts(const struct net_addr *a, const void *prefix, size_t n)
{
    return memcmp(a->b, prefix, n) == 0;
}

/* Forms that mean exactly one IPv4 address: returns its offset, or -1. ::1 and :: are 0.0.0.1 and
 * 0.0.0.0. */
static int plain_form(const struct net_addr *a)
{
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b}, zero[12], to4[2] = {0x20, 0x02};
    if (starts(a, nat64, sizeof(nat64)) || starts(a, zero, sizeof(zero)))
        return 12;
    return starts(a, to4, sizeof(to4)) ? 2 : -1;
}

/* 0.x.y.z is not an address that anything could be sent to. */
static void add_inner(const uint8_t b[4], struct net_addr ret[ADDR_INNER_MAX], unsigned *n)
{
    if (b[0] != 0)
        ret[(*n)++] = addr_from4(b);
}

/* NAT64 for local use: the length of the translator's prefix, and so the address's offset, is not
 * known (RFC 6052, 2.2). */
static unsigned local_nat64(const struct net_addr *a, struct net_addr ret[ADDR_INNER_MAX])
{
    static const uint8_t places[ADDR_INNER_MAX][4] = {
        {6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}};
    unsigned n = 0;
    for (size_t i = 0; i < ADDR_INNER_MAX; i++) {
        uint8_t b[4];
        for (size_t k = 0; k < sizeof(b); k++)
            b[k] = a->b[places[i][k]];
        add_inner(b, ret, &n);
    }
    return n;
}

/* Teredo: its server, and its client, whose bits are inverted. */
static unsigned teredo(const struct net_addr *a, struct net_addr ret[ADDR_INNER_MAX])
{
    uint8_t client[4];
    unsigned n = 0;
    for (size_t i = 0; i < sizeof(client); i++)
        client[i] = (uint8_t)~a->b[12 + i];
    add_inner(a->b + 4, ret, &n);
    add_inner(client, ret, &n);
    return n;
}

unsigned addr_inner4(const struct net_addr *a, struct net_addr ret[ADDR_INNER_MAX])
{
    static const uint8_t local[6] = {0, 0x64, 0xff, 0x9b, 0, 1}, ter[4] = {0x20, 0x01};
    static const uint8_t isatap[4] = {0, 0, 0x5e, 0xfe};
    if (addr_is4(a))
        return 0;
    int at = plain_form(a);
    if (at >= 0) {
        ret[0] = addr_from4(a->b + at);
        return 1;
    }
    if (starts(a, local, sizeof(local)))
        return local_nat64(a, ret);
    if (starts(a, ter, sizeof(ter)))
        return teredo(a, ret);
    if ((a->b[8] & ~2) == 0 && memcmp(a->b + 9, isatap + 1, sizeof(isatap) - 1) == 0) {
        ret[0] = addr_from4(a->b + 12);
        return 1;
    }
    return 0;
}

/* --- the class ------------------------------------------------------------------------------- */

/* The stricter of two classes, for an address that may lead to two places. */
static enum addr_class stricter(enum addr_class a, enum addr_class b)
{
    static const uint8_t rank[CLASS_MAX] = {
        [CLASS_PUBLIC] = 0,    [CLASS_RESERVED] = 1, [CLASS_PRIVATE] = 2, [CLASS_LINK_LOCAL] = 3,
        [CLASS_MULTICAST] = 4, [CLASS_LOOPBACK] = 5, [CLASS_META] = 6,
    };
    return rank[a] >= rank[b] ? a : b;
}

static enum addr_class classify4(const struct net_addr *a)
{
    return lookup(ranges4, ARRAY_LEN(ranges4), addr_bytes4(a), 4);
}

enum addr_class addr_classify(const struct net_addr *a)
{
    struct net_addr inner[ADDR_INNER_MAX];
    if (addr_is4(a))
        return classify4(a);
    unsigned n = addr_inner4(a, inner);
    if (plain_form(a) >= 0)
        return classify4(&inner[0]);
    enum addr_class class = lookup(ranges6, ARRAY_LEN(ranges6), a->b, 16);
    for (unsigned i = 0; i < n; i++)
        class = stricter(class, classify4(&inner[i]));
    return class;
}
