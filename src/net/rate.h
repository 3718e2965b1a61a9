/* Limits on traffic in one direction: bytes and packets per period, each with a token bucket.
 *
 * A flow asks for a grant, moves at most that much, and is charged for what it moved. TCP is cut to
 * the grant and waits for the rest; datagrams cannot be cut, so the last one may leave a debt.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "util/bucket.h"

enum {
    RATE_PACKET = 1500,       /* bytes assumed for a packet of unknown size */
    RATE_QUANTUM = 64 * 1024, /* the most that is granted at once */
    RATE_PERIOD_MIN_MS = 10,  /* shorter ones cannot be enforced */
    RATE_PERIOD_MAX_S = 86400,
};

struct rate_limit {
    uint64_t amount; /* in each period; 0: no limit */
    uint64_t period_ms;
    uint64_t burst; /* extra, once, at the start */
};

struct rate_limits {
    struct rate_limit bytes, packets;
};

struct rate {
    struct bucket bytes, packets;
    bool limited;
};

void rate_init(struct rate *r, const struct rate_limits *l, uint64_t now);
/* How many of `want` (>= 1) bytes may pass now, in packets of `packet` bytes. 0: none yet. At least
 * one packet, or all of `want`, or the bucket's capacity, so that grants do not become tiny. */
size_t rate_grant(struct rate *r, size_t want, size_t packet, uint64_t now);
/* The most that is granted at once: worth a system call, and others have a turn in each period. */
size_t rate_quantum(const struct rate *r, size_t packet);
/* Charges for what was sent, as of the last grant. */
void rate_charge(struct rate *r, size_t bytes, size_t packets);
/* How long until rate_grant() may give something. */
uint64_t rate_wait_ns(const struct rate *r);
