/* Functions shared by the verbs of `msb image`. */
#pragma once

#include "cli/core/noun.h"
#include "cli/image/cache.h"

#define IMAGE_LIST_HINT "'msb image list' shows the stored images"

/* An image by reference or by digest ("sha256:..."). */
int image_find(struct image_cache *c, const char *arg, struct image_record *ret, struct err *e);

/* The reference in its familiar form; malloc'd, NULL if out of memory. */
char *image_name(const struct image_record *r);
/* Its size on disk: metadata and all layers, including shared ones. */
uint64_t image_size(const struct image_record *r);
/* The members that `image list` and `image inspect` have in common. */
json_t *image_json(const struct image_record *r);
