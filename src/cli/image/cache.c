#include "cli/image/cache.h"

#include <stdio.h>

#include "util/cleanup.h"

int image_cache_open(struct image_cache *c, struct err *e)
{
    AUTO_FREE char *dir = NULL;
    int r = store_open(&c->home, e);
    if (r < 0)
        return r;
    if (asprintf(&dir, "%s/cache", c->home.home) < 0) {
        dir = NULL;
        return err_oom(e);
    }
    return image_store_open(&c->images, dir, e);
}

void image_cache_close(struct image_cache *c)
{
    image_store_close(&c->images);
    store_close(&c->home);
}

int image_cache_used(void *ctx, struct strlist *ret, struct err *e)
{
    struct sandbox *list;
    size_t n;
    int r = store_list_whole(ctx, &list, &n, e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < n; i++) {
        const char *digest = list[i].spec.image_digest;
        if (digest && !strlist_has(ret, digest) && strlist_add(ret, digest) < 0)
            r = err_oom(e);
    }
    sandbox_list_free(list, n);
    return r;
}

void image_cache_sweep(struct image_cache *c)
{
    struct image_collect opt = {.used = image_cache_used, .ctx = &c->home};
    (void)image_store_collect(&c->images, &opt, NULL, NULL);
}
