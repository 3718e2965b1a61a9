/* The last few of many: malloc'd things, of which at most `max` are kept. */
#pragma once

#include <stddef.h>

struct ring {
    size_t max; /* set by the caller, before the first push */
    void **v;
    size_t n, cap, first; /* first: the oldest, once there are max of them */
};

/* Takes p; the oldest one is freed if there are too many. -ENOMEM frees p. */
int ring_push(struct ring *r, void *p);
void *ring_at(const struct ring *r, size_t i); /* 0 = the oldest */
void ring_free(struct ring *r);                /* and everything in it; it is empty afterwards */
