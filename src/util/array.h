/* Growable arrays. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* pv: the address of a pointer to the array. */
static inline int array_resize(void *pv, size_t n, size_t size)
{
    void *more = reallocarray(*(void **)pv, n, size);
    if (!more)
        return -ENOMEM;
    *(void **)pv = more;
    return 0;
}

static inline int array_grow(void *pv, size_t n, size_t *cap, size_t first, size_t size)
{
    size_t more = *cap ? 2 * *cap : first;
    if (n < *cap)
        return 0;
    if (array_resize(pv, more, size) < 0)
        return -ENOMEM;
    *cap = more;
    return 0;
}

/* Each is 0, or -ENOMEM and nothing has changed. The first resizes the array to n; the second
 * doubles one that has n items and room for `cap`, if it is full, starting with `first`. */
/* NOLINTBEGIN(bugprone-sizeof-expression): items may be pointers */
#define ARRAY_RESIZE(v, n) array_resize(&(v), n, sizeof(*(v)))
#define ARRAY_GROW(v, n, cap, first) array_grow(&(v), n, &(cap), first, sizeof(*(v)))
/* NOLINTEND(bugprone-sizeof-expression) */
