#include "image/image.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/local.h"
#include "image/store/store.h"
#include "util/cleanup.h"

void image_free(struct image *img)
{
    close_fd(&img->lock_fd);
    free(img->digest);
    image_config_free(&img->config);
    *img = IMAGE_INIT;
}

/* ---- what is on this host ---- */

/* An image without a configuration. */
static int fill_local(const struct local_image *l, enum image_kind kind, struct image *img,
                      struct err *e)
{
    img->kind = kind;
    img->size = l->size;
    if (asprintf(&img->digest, "sha256:%s", l->hex) < 0)
        img->digest = NULL;
    if (!img->digest || image_config_init(&img->config) < 0)
        return err_oom(e);
    return 0;
}

static int open_path(const char *path, struct stat *st, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return err_hinted(e, err_set(e, ENOENT, "image not found: %s", path),
                          "there is no directory or tar archive of that name");
    if (fd < 0 || fstat(fd, st) < 0)
        return err_sys(e, errno, "cannot open the image '%s'", path);
    if (!S_ISDIR(st->st_mode) && !S_ISREG(st->st_mode))
        return err_set(e, EINVAL, "'%s' is neither a directory nor a file", path);
    if (S_ISREG(st->st_mode) && st->st_size == 0)
        return err_hinted(e, err_set(e, EINVAL, "'%s' is empty", path),
                          "an image file is a tar, plain or compressed with gzip or zstd");
    return steal_fd(&fd);
}

static int resolve_path(const char *path, const struct image_ctx *ctx, struct image_store *s,
                        struct image *img, struct err *e)
{
    struct stat st = {0};
    struct local_image l = {0};
    AUTO_CLOSE int fd = open_path(path, &st, e);
    if (fd < 0)
        return fd;
    bool dir = S_ISDIR(st.st_mode);
    int r = dir ? local_dir(fd, path, ctx, &s->cache, &l, e)
                : local_tar(fd, path, &st, ctx, &s->cache, &l, e);
    return r < 0 ? r : fill_local(&l, dir ? IMAGE_DIRECTORY : IMAGE_TAR, img, e);
}

/* The built-in image goes through the cache as well: sandboxes keep the one from which they were
 * created when a newer msb brings another. */
static int resolve_base(const struct image_ctx *ctx, struct image_store *s, struct image *img,
                        struct err *e)
{
    char path[PATH_MAX];
    if (!ctx->assets_dir || (size_t)snprintf(path, sizeof(path), "%s/%s", ctx->assets_dir,
                                             IMAGE_BASE_FILE) >= sizeof(path))
        return err_set(e, ENOENT, "image not found: %s (no assets directory)", IMAGE_BASE_REF);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    struct local_image l = {0};
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot open the built-in image '%s'", path);
    int r = local_base(fd, path, &st, ctx, &s->cache, &l, e);
    return r < 0 ? r : fill_local(&l, IMAGE_BUILTIN, img, e);
}

/* ---- references ---- */

/* Finds a reference's image in the store, if it is for that platform. An image without a platform
 * may run anywhere. */
static int find_stored(struct image_store *s, const struct reference *ref,
                       const struct oci_platform *want, struct image_record *ret, struct err *e)
{
    int r = image_store_find(s, ref, ret, e);
    if (r < 0)
        return r;
    const struct oci_config *c = &ret->parsed;
    const struct oci_platform is = {c->os, c->architecture, c->variant};
    if (!is.os || !is.architecture || oci_platform_match(&is, want))
        return 0;
    char have[OCI_PLATFORM_TEXT], text[OCI_PLATFORM_TEXT];
    oci_platform_text(&is, have);
    oci_platform_text(want, text);
    image_record_free(ret);
    return err_set(e, ENOENT, "the stored image is for %s, not for %s", have, text);
}

static int find_or_fetch(struct image_store *s, const struct reference *ref,
                         const struct image_ctx *ctx, const struct oci_platform *want,
                         struct image_record *ret, struct err *e)
{
    bool may = ctx->fetch && ctx->pull != IMAGE_PULL_NEVER;
    int r = -ENOENT;
    if (!may || ctx->pull != IMAGE_PULL_ALWAYS)
        r = find_stored(s, ref, want, ret, e);
    if (r != -ENOENT)
        return r;
    if (!may) {
        AUTO_FREE char *name = reference_familiar(ref);
        if (name)
            err_hint(e, "pull it with: msb pull %s", name);
        return r;
    }
    err_clear(e);
    r = ctx->fetch(ctx->fetch_ctx, s, ref, e);
    return r < 0 ? r : find_stored(s, ref, want, ret, e);
}

static int fill_record(struct image_record *r, struct image *img, struct err *e)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(&r->digest, text);
    img->kind = IMAGE_OCI;
    img->size = r->disk_size;
    img->named_here = !r->pulled;
    for (size_t i = 0; i < r->n_layers; i++)
        img->size += r->layers[i].erofs_size;
    img->digest = strdup(text);
    img->config = r->parsed.run;
    r->parsed.run = (struct image_config){0};
    return img->digest ? 0 : err_oom(e);
}

/* A directory or file with that name may have been meant. */
static void hint_local(const char *arg, struct err *e)
{
    struct stat st;
    if (stat(arg, &st) == 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        err_hint(e, "to use the %s of that name in the current directory, write ./%s",
                 S_ISDIR(st.st_mode) ? "directory" : "file", arg);
}

static int resolve_reference(const char *arg, const struct image_ctx *ctx, struct image_store *s,
                             struct image *img, struct err *e)
{
    AUTO_REFERENCE struct reference ref = {0};
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    AUTO_OCI_PLATFORM struct oci_platform host = {0};
    oci_platform_host(&host);
    int r = reference_parse(arg, &ref, e);
    if (r == 0)
        r = find_or_fetch(s, &ref, ctx, ctx->platform ? ctx->platform : &host, &rec, e);
    if (r < 0) {
        hint_local(arg, e);
        return r;
    }
    return fill_record(&rec, img, e);
}

/* ---- the argument ---- */

static bool has_prefix(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_path(const char *arg)
{
    return arg[0] == '/' || has_prefix(arg, "./") || has_prefix(arg, "../") ||
           strcmp(arg, ".") == 0 || strcmp(arg, "..") == 0;
}

/* rootfs.tar.gz: no image in a registry has such a name. */
static bool is_tar_name(const char *arg)
{
    static const char *const ends[] = {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd"};
    size_t n = strlen(arg);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n > k && strcmp(arg + n - k, ends[i]) == 0)
            return true;
    }
    return false;
}

bool image_is_local(const char *arg)
{
    return arg[0] == '~' || is_path(arg) || is_tar_name(arg);
}

static int resolve(const char *arg, const struct image_ctx *ctx, struct image_store *s,
                   struct image *img, struct err *e)
{
    if (arg[0] == '~' && (arg[1] == '/' || !arg[1])) {
        char path[PATH_MAX];
        const char *home = getenv("HOME");
        if (!home || !*home)
            return err_set(e, EINVAL, "cannot resolve '%s': HOME is not set", arg);
        if ((size_t)snprintf(path, sizeof(path), "%s%s", home, arg + 1) >= sizeof(path))
            return err_sys(e, ENAMETOOLONG, "'%.256s'", arg);
        return resolve_path(path, ctx, s, img, e);
    }
    if (is_path(arg) || is_tar_name(arg))
        return resolve_path(arg, ctx, s, img, e);
    if (strcmp(arg, IMAGE_BASE_REF) == 0)
        return resolve_base(ctx, s, img, e);
    return resolve_reference(arg, ctx, s, img, e);
}

int image_resolve(const char *image_arg, const struct image_ctx *ctx, struct image *ret,
                  struct err *e)
{
    if (!image_arg || !*image_arg)
        return err_set(e, EINVAL, "no image given");
    AUTO_IMAGE_STORE struct image_store s = IMAGE_STORE_INIT;
    struct image img = IMAGE_INIT;
    int r = image_store_open(&s, ctx->cache_dir, e);
    if (r == 0)
        r = resolve(image_arg, ctx, &s, &img, e);
    if (r < 0) {
        image_free(&img);
        return r;
    }
    img.lock_fd = steal_fd(&s.gc_fd);
    *ret = img;
    return 0;
}
