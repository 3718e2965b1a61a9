#include "util/addr_class.h"

#include "util/cleanup.h"

struct range {
    uint8_t b[16];
    uint8_t bits;
    uint8_t class;
};

/* The first match counts. */
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

/* Where the IPv4 address inside an IPv6 one starts, or -1. ::1 and :: are 0.0.0.1 and 0.0.0.0. */
static int inner4(const struct net_addr *a)
{
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b}, zero[12];
    if (addr_is4(a) || memcmp(a->b, nat64, 12) == 0 || memcmp(a->b, zero, 12) == 0)
        return 12;
    return a->b[0] == 0x20 && a->b[1] == 0x02 ? 2 : -1;
}

enum addr_class addr_classify(const struct net_addr *a)
{
    int at = inner4(a);
    return at >= 0 ? lookup(ranges4, ARRAY_LEN(ranges4), a->b + at, 4)
                   : lookup(ranges6, ARRAY_LEN(ranges6), a->b, 16);
}
