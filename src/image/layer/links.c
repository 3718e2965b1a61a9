#include "image/layer/links.h"
#include "util/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int layer_links_add(struct layer_links *l, const char *path, const char *target)
{
    if (ARRAY_GROW(l->v, l->n, l->cap, 64) < 0)
        return -ENOMEM;
    struct layer_link x = {.path = strdup(path), .target = strdup(target)};
    if (!x.path || !x.target) {
        free(x.path);
        free(x.target);
        return -ENOMEM;
    }
    l->v[l->n++] = x;
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct layer_link *)a)->path, ((const struct layer_link *)b)->path);
}

/* The link at the name to which this one refers; NULL if there is none, or it is this one. */
static struct layer_link *at_target(const struct layer_links *l, const struct layer_link *x)
{
    const struct layer_link key = {.path = x->target};
    struct layer_link *found = bsearch(&key, l->v, l->n, sizeof(*l->v), by_path);
    return found == x ? NULL : found;
}

/* A topological sort. Links in a cycle, which no archive can produce, come last. */
int layer_links_sort(struct layer_links *l)
{
    size_t ready = 0;
    l->order = calloc(l->n + 1, sizeof(struct layer_link *));
    if (!l->order)
        return -ENOMEM;
    if (l->n)
        qsort(l->v, l->n, sizeof(*l->v), by_path);
    for (size_t i = 0; i < l->n; i++) {
        struct layer_link *t = at_target(l, &l->v[i]);
        if (t)
            t->before++;
    }
    for (size_t i = 0; i < l->n; i++)
        if (!l->v[i].before)
            l->order[ready++] = &l->v[i];
    for (size_t i = 0; i < ready; i++) {
        struct layer_link *t = at_target(l, l->order[i]);
        if (t && --t->before == 0)
            l->order[ready++] = t;
    }
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].before)
            l->order[ready++] = &l->v[i];
    return 0;
}

void layer_links_free(struct layer_links *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].path);
        free(l->v[i].target);
    }
    free(l->v);
    free(l->order);
    *l = (struct layer_links){0};
}
