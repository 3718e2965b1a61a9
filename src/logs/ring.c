#include "logs/ring.h"

#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>

int ring_push(struct ring *r, void *p)
{
    assert(r->n <= r->cap && r->n <= r->max && (r->first == 0 || r->n == r->max));
    if (r->max == 0) {
        free(p);
        return 0;
    }
    if (r->n == r->max) {
        free(r->v[r->first]);
        r->v[r->first] = p;
        r->first = (r->first + 1) % r->n;
        return 0;
    }
    if (r->n == r->cap) {
        size_t cap = MIN(r->max, r->cap ? 2 * r->cap : 64);
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): it is an array of pointers */
        void **v = reallocarray(r->v, cap, sizeof(*v));
        if (!v) {
            free(p);
            return -ENOMEM;
        }
        r->v = v;
        r->cap = cap;
    }
    r->v[r->n++] = p;
    return 0;
}

void *ring_at(const struct ring *r, size_t i)
{
    assert(i < r->n);
    return r->v[(r->first + i) % r->n];
}

void ring_free(struct ring *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->v[i]);
    free(r->v);
    *r = (struct ring){.max = r->max};
}
