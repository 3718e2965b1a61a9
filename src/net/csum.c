#include "net/csum.h"

#include <string.h>

#include "util/cleanup.h"

/* 32-bit words are added up in 64 bits, so 4 G words fit before anything is lost. */
uint64_t csum_add(uint64_t sum, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (; n >= 4; n -= 4, b += 4) {
        uint32_t w;
        memcpy(&w, b, 4);
        sum += w;
    }
    if (n >= 2) {
        uint16_t w;
        memcpy(&w, b, 2);
        sum += w;
        b += 2;
        n -= 2;
    }
    if (n > 0) {
        uint8_t last[2] = {*b, 0};
        uint16_t w;
        memcpy(&w, last, 2);
        sum += w;
    }
    return sum;
}

uint16_t csum_fold(uint64_t sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

uint64_t csum_add_iov(uint64_t sum, const struct iovec *iov, unsigned n, size_t off, size_t len)
{
    size_t at =
        0; /* bytes summed so far: what starts at an odd offset is summed with its bytes swapped */
    for (unsigned i = 0; i < n && len > 0; i++) {
        if (off >= iov[i].iov_len) {
            off -= iov[i].iov_len;
            continue;
        }
        size_t k = MIN(len, iov[i].iov_len - off);
        uint64_t part = csum_add(0, (const uint8_t *)iov[i].iov_base + off, k);
        sum += at % 2 ? __builtin_bswap16(csum_fold(part)) : part;
        at += k;
        len -= k;
        off = 0;
    }
    return sum;
}

uint64_t csum_pseudo(const struct net_addr *src, const struct net_addr *dst, uint8_t proto,
                     uint32_t len)
{
    uint64_t sum = 0;
    if (addr_is4(src)) {
        sum = csum_add(sum, addr_bytes4(src), 4);
        sum = csum_add(sum, addr_bytes4(dst), 4);
    } else {
        sum = csum_add(sum, src->b, 16);
        sum = csum_add(sum, dst->b, 16);
    }
    uint32_t be[2] = {__builtin_bswap32(len), __builtin_bswap32(proto)};
    return csum_add(sum, be, sizeof(be));
}
