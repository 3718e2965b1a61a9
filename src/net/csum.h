/* The Internet checksum, over flat and scattered bytes. Sums are kept unfolded in 64 bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "util/addr.h"

uint64_t csum_add(uint64_t sum, const void *p, size_t n);
/* Adds [off, off+len) of iov, which must start at an even offset in what is summed. */
uint64_t csum_add_iov(uint64_t sum, const struct iovec *iov, unsigned n, size_t off, size_t len);
/* The pseudo header of a transport protocol. */
uint64_t csum_pseudo(const struct net_addr *src, const struct net_addr *dst, uint8_t proto,
                     uint32_t len);
/* Folds the sum; in network order as stored in memory; not inverted. */
uint16_t csum_fold(uint64_t sum);
static inline uint16_t csum_finish(uint64_t sum)
{
    return (uint16_t)~csum_fold(sum);
}
