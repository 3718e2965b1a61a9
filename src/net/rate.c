#include "net/rate.h"

#include "util/cleanup.h"

static void bucket_of(struct bucket *b, const struct rate_limit *l, uint64_t now)
{
    bucket_init(b, l->amount, l->period_ms * 1000000ULL, l->amount, l->burst, now);
}

void rate_init(struct rate *r, const struct rate_limits *l, uint64_t now)
{
    bucket_of(&r->bytes, &l->bytes, now);
    bucket_of(&r->packets, &l->packets, now);
    r->limited = l->bytes.amount > 0 || l->packets.amount > 0;
}

size_t rate_quantum(const struct rate *r, size_t packet)
{
    if (r->bytes.amount == 0)
        return RATE_QUANTUM;
    return MIN(MAX((size_t)(r->bytes.capacity / 8), packet), (size_t)RATE_QUANTUM);
}

size_t rate_grant(struct rate *r, size_t want, size_t packet, uint64_t now)
{
    if (!r->limited)
        return want;
    uint64_t bytes = bucket_level(&r->bytes, now), packets = bucket_level(&r->packets, now);
    uint64_t least = MIN(want, packet);
    if (r->bytes.amount > 0)
        least = MIN(least, r->bytes.capacity);
    if (bytes < least || packets == 0)
        return 0;
    uint64_t most = MIN((uint64_t)want, bytes);
    if (packets < most / packet + 1)
        most = MIN(most, packets * packet);
    return (size_t)MIN(most, rate_quantum(r, packet));
}

void rate_charge(struct rate *r, size_t bytes, size_t packets)
{
    bucket_take(&r->bytes, bytes);
    bucket_take(&r->packets, packets);
}

uint64_t rate_wait_ns(const struct rate *r)
{
    uint64_t bytes = bucket_wait_ns(&r->bytes, RATE_PACKET);
    uint64_t packets = bucket_wait_ns(&r->packets, 1);
    return MAX(bytes, packets);
}
