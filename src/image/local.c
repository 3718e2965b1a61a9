#include "image/local.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/erofs/erofs.h"
#include "image/erofs/tree.h"
#include "image/layer/layer.h"
#include "image/layer/source.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

enum {
    DIR_TRIES = 3, /* attempts to read a directory while it does not change */
    HASH_READ = 256 << 10,
};

/* Notes the size of an image that was found, and closes it. */
static int take_size(struct local_image *ret, int fd, const char *name, struct err *e)
{
    int r = cache_check_image(fd, 0, &ret->size);
    close_fd(&fd);
    return r < 0 ? err_sys(e, -r, "cannot open the image of '%s'", name) : 0;
}

static uint64_t max_expanded(const struct image_ctx *ctx)
{
    return ctx->max_expanded ? ctx->max_expanded : IMAGE_EXPANDED_MAX_DEFAULT;
}

static int64_t ctime_ns(const struct stat *st)
{
    return (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
}

/* ---- directories ---- */

/* The name of a directory's image: its key, and what else affects the result. */
static void dir_hex(const struct digest *key, int64_t salt, char hex[CACHE_HEX_SIZE])
{
    struct {
        char kind[8];
        int64_t version, salt;
        struct digest key;
    } rec = {.kind = "dir", .version = CACHE_VERSION, .salt = salt, .key = *key};
    struct digest digest = digest_of(&rec, sizeof(rec));
    digest_hex(&digest, hex);
}

static int scan_dir(struct source_dir *s, const struct image_ctx *ctx, struct tree *t,
                    struct err *e)
{
    if (tree_init(t, 0, max_expanded(ctx)) < 0)
        return err_oom(e);
    int r = source_dir_scan(s, t, e);
    if (r < 0)
        tree_free(t);
    return r;
}

/* Builds from a scanned tree, then scans again: *ret_same tells whether the image matches the
 * key. */
static int build_dir_once(struct source_dir *s, const struct image_ctx *ctx, struct tree *t,
                          struct cache_build *b, bool *ret_same, struct err *e)
{
    struct erofs_writer w;
    cache_settle(s->newest_ctime_ns);
    int r = cache_build_begin(b, e);
    if (r < 0)
        return r;
    erofs_begin(&w, b->fd, b->c->tmp_fd);
    r = source_dir_load(s, t, &w, e);
    if (r == 0)
        r = erofs_finish(&w, t, e);
    erofs_abort(&w);
    if (r < 0)
        return r;
    struct source_dir again = *s;
    struct tree t2;
    r = scan_dir(&again, ctx, &t2, e);
    if (r < 0)
        return r;
    *ret_same = digest_equal(&again.key, &s->key);
    tree_free(t);
    *t = t2;
    *s = again;
    return 0;
}

static int build_dir(struct source_dir *s, const struct image_ctx *ctx, struct tree *t,
                     struct cache_build *b, char hex[CACHE_HEX_SIZE], struct err *e)
{
    bool same = false;
    for (int i = 0; i < DIR_TRIES && !same; i++) {
        int r = build_dir_once(s, ctx, t, b, &same, e);
        if (r < 0)
            return r;
    }
    /* A directory that keeps changing gets an image that no other sandbox will share. */
    dir_hex(&s->key, same ? 0 : (int64_t)realtime_ns(), hex);
    return cache_build_publish(b, hex, e);
}

int local_dir(int fd, const char *name, const struct image_ctx *ctx, const struct cache *c,
              struct local_image *ret, struct err *e)
{
    struct source_dir s = {.fd = fd, .name = name};
    struct tree t;
    struct stat st;
    char *hex = ret->hex;
    if (stat(ctx->cache_dir, &st) == 0) {
        s.skip_dev = st.st_dev;
        s.skip_ino = st.st_ino;
    }
    int r = scan_dir(&s, ctx, &t, e);
    if (r < 0)
        return r;
    dir_hex(&s.key, 0, hex);
    int img = cache_open_image(c, hex);
    if (img < 0) {
        AUTO_CACHE_BUILD struct cache_build b = CACHE_BUILD_NONE;
        r = cache_build_lock(&b, c, hex, e);
        if (r == 0 && (img = cache_open_image(c, hex)) < 0) {
            r = build_dir(&s, ctx, &t, &b, hex, e);
            if (r == 0 && (img = cache_open_image(c, hex)) < 0)
                r = err_sys(e, -img, "cannot open the image of '%s'", name);
        }
    }
    tree_free(&t);
    return r < 0 ? r : take_size(ret, img, name, e);
}

/* ---- archives ---- */

static int build_tar(int fd, const char *name, const struct image_ctx *ctx, struct cache_build *b,
                     const struct stat *st, char hex[CACHE_HEX_SIZE], struct err *e)
{
    char quoted[PATH_MAX + 2];
    struct fd_stream in;
    struct layer_made made;
    (void)snprintf(quoted, sizeof(quoted), "'%s'", name);
    const struct layer_want want = {.name = quoted, .max_bytes = max_expanded(ctx)};
    cache_settle(ctime_ns(st));
    int r = cache_build_begin(b, e);
    if (r < 0)
        return r;
    fd_stream_init(&in, fd, name);
    r = layer_convert(&in.s, &want, b->fd, b->c->tmp_fd, NULL, &made, e);
    if (r < 0)
        return r;
    struct stat now;
    if (fstat(fd, &now) < 0 || now.st_size != st->st_size || ctime_ns(&now) != ctime_ns(st))
        return err_set(e, EAGAIN, "'%s' changed while it was being read", name);
    digest_hex(&made.blob, hex);
    r = cache_build_publish(b, hex, e);
    /* Without the note, the file is read again next time: slower, but not wrong. */
    if (r == 0)
        (void)cache_put_digest(b->c, st, hex);
    return r;
}

/* A descriptor of the image made from exactly this file, or -ENOENT. */
static int find_file(const struct cache *c, const struct stat *st, char hex[CACHE_HEX_SIZE])
{
    return cache_get_digest(c, st, hex) < 0 ? -ENOENT : cache_open_image(c, hex);
}

/* Makes an image from a file, in a locked build; hex: its digest. */
typedef int (*build_fn)(int fd, const char *name, const struct image_ctx *ctx,
                        struct cache_build *b, const struct stat *st, char hex[CACHE_HEX_SIZE],
                        struct err *e);

static int resolve_file(int fd, const char *name, const struct stat *st,
                        const struct image_ctx *ctx, const struct cache *c, build_fn build,
                        struct local_image *ret, struct err *e)
{
    char *hex = ret->hex, identity[CACHE_HEX_SIZE];
    int r = 0, img = find_file(c, st, hex);
    if (img < 0) {
        AUTO_CACHE_BUILD struct cache_build b = CACHE_BUILD_NONE;
        cache_identity(st, identity);
        r = cache_build_lock(&b, c, identity, e);
        if (r == 0 && (img = find_file(c, st, hex)) < 0) {
            r = build(fd, name, ctx, &b, st, hex, e);
            if (r == 0 && (img = cache_open_image(c, hex)) < 0)
                r = err_sys(e, -img, "cannot open the image of '%s'", name);
        }
    }
    return r < 0 ? r : take_size(ret, img, name, e);
}

/* ---- the built-in image ---- */

/* Copies `from`; hex: the digest of the content. */
static int copy_and_hash(int from, int to, char hex[CACHE_HEX_SIZE])
{
    struct hasher h;
    AUTO_FREE uint8_t *buf = malloc(HASH_READ);
    int r = buf ? 0 : -ENOMEM;
    hasher_init(&h);
    for (off_t at = 0; r == 0;) {
        ssize_t n = pread(from, buf, HASH_READ, at);
        if (n < 0 && errno != EINTR)
            r = -errno;
        if (n == 0)
            break;
        if (n > 0) {
            hasher_update(&h, buf, (size_t)n);
            r = pwrite_all(to, buf, (size_t)n, (uint64_t)at);
            at += n;
        }
    }
    struct digest digest = hasher_finish(&h);
    digest_hex(&digest, hex);
    return r;
}

static int build_copy(int fd, const char *name, const struct image_ctx *ctx, struct cache_build *b,
                      const struct stat *st, char hex[CACHE_HEX_SIZE], struct err *e)
{
    uint64_t size;
    int r = cache_check_image(fd, 0, &size);
    if (r < 0)
        return err_hinted(e, err_sys(e, -r, "the built-in image '%s' is damaged", name),
                          "reinstall msb");
    cache_settle(ctime_ns(st));
    if ((r = cache_build_begin(b, e)) < 0)
        return r;
    r = copy_and_hash(fd, b->fd, hex);
    if (r < 0)
        return err_sys(e, -r, "cannot copy the built-in image '%s'", name);
    r = cache_build_publish(b, hex, e);
    if (r == 0)
        (void)cache_put_digest(b->c, st, hex);
    return r;
}

int local_tar(int fd, const char *name, const struct stat *st, const struct image_ctx *ctx,
              const struct cache *c, struct local_image *ret, struct err *e)
{
    return resolve_file(fd, name, st, ctx, c, build_tar, ret, e);
}

int local_base(int fd, const char *name, const struct stat *st, const struct image_ctx *ctx,
               const struct cache *c, struct local_image *ret, struct err *e)
{
    return resolve_file(fd, name, st, ctx, c, build_copy, ret, e);
}
