/* A home's images, and which of them its sandboxes use. */
#pragma once

#include "image/store/store.h"
#include "store/store.h"
#include "util/cleanup.h"
#include "util/err.h"

struct image_cache {
    struct store home;
    struct image_store images;
};
#define IMAGE_CACHE_NONE ((struct image_cache){.home = STORE_NONE, .images = IMAGE_STORE_INIT})

int image_cache_open(struct image_cache *c, struct err *e);
void image_cache_close(struct image_cache *c); /* allowed on IMAGE_CACHE_NONE */
#define AUTO_IMAGE_CACHE CLEANUP(image_cache_close)

/* For image_collect.used; ctx: a struct store. Fails if a sandbox cannot be read, since it could
 * use any image. */
int image_cache_used(void *ctx, struct strlist *ret, struct err *e);

/* Removes what a failure left behind. Does nothing while other processes use the store; a later
 * removal will do it. */
void image_cache_sweep(struct image_cache *c);
