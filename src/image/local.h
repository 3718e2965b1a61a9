/* Images made from files on this host: directories, tars, and the file of the built-in image.
 *
 * Each becomes one EROFS file in the cache, named by the content it was made from, and is made only
 * if no such file exists.
 */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

#include "image/image.h"
#include "image/store/cache.h"
#include "util/err.h"

struct local_image {
    char hex[CACHE_HEX_SIZE]; /* names it, in images/ */
    uint64_t size;
};

/* fd is open for reading, `name` is for messages, `st` is fd's. */
int local_dir(int fd, const char *name, const struct image_ctx *ctx, const struct cache *c,
              struct local_image *ret, struct err *e);
int local_tar(int fd, const char *name, const struct stat *st, const struct image_ctx *ctx,
              const struct cache *c, struct local_image *ret, struct err *e);
int local_base(int fd, const char *name, const struct stat *st, const struct image_ctx *ctx,
               const struct cache *c, struct local_image *ret, struct err *e);
