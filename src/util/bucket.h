/* A token bucket: so much in so long, with time given by the caller.
 *
 * It holds at most `capacity` tokens, starts full, and gains `amount` in each `period_ns`. What is
 * taken may exceed what is there (a packet is not cut in two for it): the rest is a debt, which
 * time pays off first. A debt never exceeds the capacity, so no taker can buy a silence for ever.
 */
#ifndef MSB_UTIL_BUCKET_H
#define MSB_UTIL_BUCKET_H

#include <stdint.h>

/* The most that capacity, and an extra at the start, may be: sums of them fit. */
#define BUCKET_MAX (1ULL << 60)

struct bucket {
    uint64_t amount, period_ns; /* amount 0: no limit */
    uint64_t capacity;
    int64_t level;
    uint64_t filled_ns;
};

/* `extra` tokens are there beyond the capacity at the start, once. */
void bucket_init(struct bucket *b, uint64_t amount, uint64_t period_ns, uint64_t capacity,
                 uint64_t extra, uint64_t now);
/* How many tokens are there; 0 in debt; UINT64_MAX without a limit. */
uint64_t bucket_level(struct bucket *b, uint64_t now);
/* At the time of the last bucket_level(). */
void bucket_take(struct bucket *b, uint64_t n);
/* How long until there are n, or as many as it can hold: 0 when they are there. */
uint64_t bucket_wait_ns(const struct bucket *b, uint64_t n);

#endif
