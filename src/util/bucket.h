/* A token bucket; the caller passes in the time.
 *
 * It holds at most `capacity` tokens, starts full, and gains `amount` in each `period_ns`. A taker
 * may take more than there are (a packet is not split): the excess is a debt, which is paid off
 * first. A debt never exceeds the capacity, so a single large take cannot block the bucket for
 * long.
 */
#pragma once

#include <stdint.h>

/* The limit of `capacity` and of `extra`: their sum fits an int64_t. */
#define BUCKET_MAX (1ULL << 60)

struct bucket {
    uint64_t amount, period_ns; /* amount 0: no limit */
    uint64_t capacity;
    int64_t level;
    uint64_t filled_ns;
};

/* The bucket starts with `extra` tokens beyond its capacity: a burst that is not refilled. */
void bucket_init(struct bucket *b, uint64_t amount, uint64_t period_ns, uint64_t capacity,
                 uint64_t extra, uint64_t now);
/* The tokens available; 0 if in debt; UINT64_MAX without a limit. */
uint64_t bucket_level(struct bucket *b, uint64_t now);
/* Takes n tokens, at the time of the last bucket_level(). */
void bucket_take(struct bucket *b, uint64_t n);
/* How long until n tokens, or as many as fit, are available; 0 if they are now. */
uint64_t bucket_wait_ns(const struct bucket *b, uint64_t n);
