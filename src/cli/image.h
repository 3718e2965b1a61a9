/* What the verbs of `msb image` share. */
#ifndef MSB_CLI_IMAGE_H
#define MSB_CLI_IMAGE_H

#include "cli/image_cache.h"
#include "cli/show.h"

/* An image by reference or by digest ("sha256:..."). */
int image_find(struct image_cache *c, const char *arg, struct image_record *ret, struct err *e);

/* The reference as people write it; malloc'd, NULL without memory. */
char *image_name(const struct image_record *r);
/* Of its disk: metadata and all layers, shared ones too. */
uint64_t image_size(const struct image_record *r);
/* What `image list` and `image inspect` both say of it. */
json_t *image_json(const struct image_record *r);

#endif
