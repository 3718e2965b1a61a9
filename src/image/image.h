/* What a sandbox boots from: an image, found by the argument that the user gave.
 *
 * An image consists of a digest, which leads to its disk (image_disk_open() in store.h), and
 * defaults for the commands that run in it. Whatever the argument names, the result looks the same,
 * so nothing beyond this point knows where an image came from.
 *
 *     /dir ./dir ../dir ~/dir     a directory holding a root file system
 *     any of those, a tar file    recognized by its content: plain, gzip or zstd
 *     name.tar, name.tar.gz ...   a tar file in the current directory needs no prefix
 *     msb/base                    the built-in image, copied from the assets directory
 *     anything else               a reference: alpine, ghcr.io/a/b:1, name@sha256:...
 */
#pragma once

#include <stdint.h>

#include "image/layer/layer.h"
#include "image/oci/image_config.h"
#include "util/err.h"

/* The built-in image's name, and its file in the assets directory. */
#define IMAGE_BASE_REF "msb/base"
#define IMAGE_BASE_FILE "base.erofs"

enum image_kind { IMAGE_BUILTIN, IMAGE_DIRECTORY, IMAGE_TAR, IMAGE_OCI };
enum image_pull { IMAGE_PULL_MISSING, IMAGE_PULL_ALWAYS, IMAGE_PULL_NEVER };

struct image_store;
struct oci_platform;
struct reference;

struct image_ctx {
    const char *cache_dir;  /* "$MSB_HOME/cache": created if missing */
    const char *assets_dir; /* holds base.erofs; NULL: no built-in image */
    uint64_t max_expanded;  /* 0: IMAGE_EXPANDED_MAX_DEFAULT */

    /* References. Nothing here knows about networks: fetch, if set, gets the image into the
     * store. */
    enum image_pull pull;
    int (*fetch)(void *ctx, struct image_store *s, const struct reference *ref, struct err *e);
    void *fetch_ctx;
    const struct oci_platform *platform; /* the platform it must be for; NULL: this machine */
};

struct image {
    char *digest;         /* "sha256:<64 hex digits>": of the content the image was made from */
    enum image_kind kind; /* what the argument turned out to be */
    uint64_t size;        /* of its disk */
    bool named_here;      /* by a reference that was set locally: by load, tag or commit */
    struct image_config config;
    int lock_fd; /* while this is open, the image is not removed, even if no spec names it */
};

#define IMAGE_INIT    \
    (struct image)    \
    {                 \
        .lock_fd = -1 \
    }

/* Whether it names a file or directory on the host, rather than an image. */
bool image_is_local(const char *image_arg);

/* Finds the image that image_arg names, converting or fetching it first if it is missing. *ret is
 * untouched on failure; image_free() releases it. */
int image_resolve(const char *image_arg, const struct image_ctx *ctx, struct image *ret,
                  struct err *e);
void image_free(struct image *img);
