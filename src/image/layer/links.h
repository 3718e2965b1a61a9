/* A layer's hard links to files of the layers below, in an order that an archive can have them in.
 *
 * Such a link means the file that was there before the layer. Where the layer has a link of its own
 * at that very name, the one that means the old file must come first. Apart from that the order is
 * that of the names: the same links come out in the same order.
 */
#ifndef MSB_IMAGE_LAYER_LINKS_H
#define MSB_IMAGE_LAYER_LINKS_H

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

#endif
