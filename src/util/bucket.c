#include "util/bucket.h"

#include "util/cleanup.h"

#include <assert.h>

/* Products of tokens and nanoseconds do not fit 64 bits. */
__extension__ typedef unsigned __int128 wide;

void bucket_init(struct bucket *b, uint64_t amount, uint64_t period_ns, uint64_t capacity,
                 uint64_t extra, uint64_t now)
{
    assert(amount == 0 || period_ns > 0);
    capacity = MIN(capacity, BUCKET_MAX);
    extra = MIN(extra, BUCKET_MAX);
    *b = (struct bucket){.amount = amount,
                         .period_ns = period_ns,
                         .capacity = capacity,
                         .level = (int64_t)(capacity + extra),
                         .filled_ns = now};
}

uint64_t bucket_level(struct bucket *b, uint64_t now)
{
    if (b->amount == 0)
        return UINT64_MAX;
    if (b->level >= (int64_t)b->capacity) { /* full: time does not accumulate */
        b->filled_ns = MAX(b->filled_ns, now);
    } else if (now > b->filled_ns) {
        wide gained = (wide)(now - b->filled_ns) * b->amount / b->period_ns;
        uint64_t room = (uint64_t)((int64_t)b->capacity - b->level);
        if (gained >= room) {
            b->level = (int64_t)b->capacity;
            b->filled_ns = now;
        } else {
            b->level += (int64_t)gained;
            /* Not `now`: a fraction of a token remains in the time not counted yet. */
            b->filled_ns += (uint64_t)(gained * b->period_ns / b->amount);
        }
    }
    return b->level > 0 ? (uint64_t)b->level : 0;
}

void bucket_take(struct bucket *b, uint64_t n)
{
    if (b->amount == 0)
        return;
    int64_t least = -(int64_t)b->capacity;
    n = MIN(n, 2 * BUCKET_MAX);
    b->level = MAX(b->level - (int64_t)n, least);
}

uint64_t bucket_wait_ns(const struct bucket *b, uint64_t n)
{
    n = MIN(n, b->capacity);
    if (b->amount == 0 || b->level >= (int64_t)n)
        return 0;
    wide missing = (wide)((int64_t)n - b->level);
    wide ns = (missing * b->period_ns + b->amount - 1) / b->amount;
    return ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : (uint64_t)ns;
}
