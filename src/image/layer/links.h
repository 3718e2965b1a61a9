/* A layer's hard links to files in the layers below, in an order that works in an archive.
 *
 * Such a link refers to the file that was there before the layer. Where the layer itself has a link
 * at that name, the one that refers to the old file must come first. Otherwise, they are sorted by
 * name, so that the same links always come out in the same order.
 */
#pragma once

#include <stddef.h>

struct layer_link {
    char *path, *target;
    size_t before; /* how many others must come first */
};

struct layer_links {
    struct layer_link *v;
    size_t n, cap;
    struct layer_link **order; /* n of them, once sorted */
};

int layer_links_add(struct layer_links *l, const char *path, const char *target); /* -ENOMEM */
int layer_links_sort(struct layer_links *l);                                      /* -ENOMEM */
void layer_links_free(struct layer_links *l);
