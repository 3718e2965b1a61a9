#include "image/image.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "image/cache.h"
#include "image/erofs.h"
#include "image/io.h"
#include "image/layer.h"
#include "image/source.h"
#include "image/tree.h"
#include "util/cleanup.h"

enum {
    DIR_TRIES = 3, /* to catch a directory while nobody changes it */
    HASH_READ = 256 << 10,
};

static void free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

int image_config_init(struct image_config *c)
{
    *c = (struct image_config){0};
    char ***lists[] = {&c->env,    &c->entrypoint,    &c->cmd,
                       &c->labels, &c->exposed_ports, &c->volumes};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        if (!(*lists[i] = calloc(1, sizeof(char *)))) {
            image_config_free(c);
            return -ENOMEM;
        }
    return 0;
}

void image_config_free(struct image_config *c)
{
    free_list(c->env);
    free_list(c->entrypoint);
    free_list(c->cmd);
    free_list(c->labels);
    free_list(c->exposed_ports);
    free_list(c->volumes);
    free(c->workdir);
    free(c->user);
    free(c->stop_signal);
    *c = (struct image_config){0};
}

void image_free(struct image *img)
{
    close_fd(&img->fd);
    free(img->path);
    free(img->digest);
    image_config_free(&img->config);
    *img = IMAGE_INIT;
}

/* Makes *ret of an open EROFS file; takes the descriptor. */
static int fill_image(struct image *ret, int fd, const char *dir, const char *name, const char *hex,
                      struct err *e)
{
    struct image img = IMAGE_INIT;
    img.fd = fd;
    if (cache_check_image(fd, &img.size) < 0) {
        image_free(&img);
        return err_set(e, EBADMSG, "'%s/%s' is not a sound image", dir, name);
    }
    if (asprintf(&img.path, "%s/%s", dir, name) < 0)
        img.path = NULL;
    if (asprintf(&img.digest, "sha256:%s", hex) < 0)
        img.digest = NULL;
    if (!img.path || !img.digest || image_config_init(&img.config) < 0) {
        image_free(&img);
        return err_sys(e, ENOMEM, "cannot open the image");
    }
    *ret = img;
    return 0;
}

static int fill_from_cache(struct image *ret, int fd, const struct image_ctx *ctx, const char *hex,
                           struct err *e)
{
    char name[CACHE_NAME_SIZE], dir[PATH_MAX];
    cache_image_name(hex, name);
    if ((size_t)snprintf(dir, sizeof(dir), "%s/images", ctx->cache_dir) >= sizeof(dir)) {
        (void)close(fd);
        return err_sys(e, ENAMETOOLONG, "%.256s", ctx->cache_dir);
    }
    return fill_image(ret, fd, dir, name, hex, e);
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

/* The name of a directory's image: its key, and what else decides about the result. */
static void dir_hex(const uint8_t key[SOURCE_KEY_SIZE], int64_t salt, char hex[CACHE_HEX_SIZE])
{
    struct {
        char kind[8];
        int64_t version, salt;
        uint8_t key[SOURCE_KEY_SIZE];
    } rec = {.kind = "dir", .version = CACHE_VERSION, .salt = salt};
    uint8_t digest[EVP_MAX_MD_SIZE] = {0};
    memcpy(rec.key, key, SOURCE_KEY_SIZE);
    (void)EVP_Digest(&rec, sizeof(rec), digest, NULL, EVP_sha256(), NULL);
    cache_hex(digest, hex);
}

static int scan_dir(struct source_dir *s, const struct image_ctx *ctx, struct tree *t,
                    struct err *e)
{
    if (tree_init(t, 0, max_expanded(ctx)) < 0)
        return err_sys(e, ENOMEM, "cannot read '%s'", s->name);
    int r = source_dir_scan(s, t, e);
    if (r < 0)
        tree_free(t);
    return r;
}

/* Builds from a scanned tree, then scans again: *ret_same tells whether the image is what the key
 * says. */
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
    *ret_same = memcmp(again.key, s->key, sizeof(s->key)) == 0;
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
    /* One that never holds still gets an image that nobody else will find. */
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    dir_hex(s->key, same ? 0 : (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, hex);
    return cache_build_publish(b, hex, e);
}

static int resolve_dir(int fd, const char *name, const struct image_ctx *ctx, const struct cache *c,
                       struct image *ret, struct err *e)
{
    struct source_dir s = {.fd = fd, .name = name};
    struct tree t;
    struct stat st;
    char hex[CACHE_HEX_SIZE];
    if (stat(ctx->cache_dir, &st) == 0) {
        s.skip_dev = st.st_dev;
        s.skip_ino = st.st_ino;
    }
    int r = scan_dir(&s, ctx, &t, e);
    if (r < 0)
        return r;
    dir_hex(s.key, 0, hex);
    int img = cache_open_image(c, hex);
    if (img < 0) {
        struct cache_build b;
        r = cache_build_lock(&b, c, hex, e);
        if (r == 0 && (img = cache_open_image(c, hex)) < 0) {
            r = build_dir(&s, ctx, &t, &b, hex, e);
            if (r == 0 && (img = cache_open_image(c, hex)) < 0)
                r = err_sys(e, -img, "cannot open the image of '%s'", name);
        }
        cache_build_end(&b);
    }
    tree_free(&t);
    return r < 0 ? r : fill_from_cache(ret, img, ctx, hex, e);
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
        return err_set(e, EAGAIN, "'%s' changed while it was read", name);
    digest_hex(&made.blob, hex);
    r = cache_build_publish(b, hex, e);
    /* Without the note the file is read again next time: slower, not wrong. */
    if (r == 0)
        (void)cache_put_digest(b->c, st, hex);
    return r;
}

/* A descriptor of the image made from exactly this file, or -ENOENT. */
static int find_file(const struct cache *c, const struct stat *st, char hex[CACHE_HEX_SIZE])
{
    return cache_get_digest(c, st, hex) < 0 ? -ENOENT : cache_open_image(c, hex);
}

/* Makes an image out of a file, in a build that is locked, and says what its digest is. */
typedef int (*build_fn)(int fd, const char *name, const struct image_ctx *ctx,
                        struct cache_build *b, const struct stat *st, char hex[CACHE_HEX_SIZE],
                        struct err *e);

static int resolve_file(int fd, const char *name, const struct stat *st,
                        const struct image_ctx *ctx, const struct cache *c, build_fn build,
                        struct image *ret, struct err *e)
{
    char hex[CACHE_HEX_SIZE], identity[CACHE_HEX_SIZE];
    int r = 0, img = find_file(c, st, hex);
    if (img < 0) {
        struct cache_build b;
        cache_identity(st, identity);
        r = cache_build_lock(&b, c, identity, e);
        if (r == 0 && (img = find_file(c, st, hex)) < 0) {
            r = build(fd, name, ctx, &b, st, hex, e);
            if (r == 0 && (img = cache_open_image(c, hex)) < 0)
                r = err_sys(e, -img, "cannot open the image of '%s'", name);
        }
        cache_build_end(&b);
    }
    return r < 0 ? r : fill_from_cache(ret, img, ctx, hex, e);
}

/* ---- the argument ---- */

static int open_path(const char *path, struct stat *st, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) {
        (void)err_set(e, ENOENT, "image not found: %s", path);
        err_hint(e, "there is no directory or tar archive of that name");
        return -ENOENT;
    }
    if (fd < 0 || fstat(fd, st) < 0)
        return err_sys(e, errno, "cannot open the image '%s'", path);
    if (!S_ISDIR(st->st_mode) && !S_ISREG(st->st_mode))
        return err_set(e, EINVAL, "'%s' is neither a directory nor a file", path);
    if (S_ISREG(st->st_mode) && st->st_size == 0) {
        (void)err_set(e, EINVAL, "'%s' is empty", path);
        err_hint(e, "an image file is a tar, plain or compressed with gzip or zstd");
        return -EINVAL;
    }
    return steal_fd(&fd);
}

static int resolve_path(const char *path, const struct image_ctx *ctx, struct image *ret,
                        struct err *e)
{
    struct stat st = {0};
    AUTO_CLOSE int fd = open_path(path, &st, e);
    if (fd < 0)
        return fd;
    struct cache c;
    int r = cache_open(&c, ctx->cache_dir, e);
    if (r < 0)
        return r;
    if (S_ISDIR(st.st_mode))
        r = resolve_dir(fd, path, ctx, &c, ret, e);
    else
        r = resolve_file(fd, path, &st, ctx, &c, build_tar, ret, e);
    cache_close(&c);
    return r;
}

/* Copies `from`, and says what its digest is. */
static int copy_and_hash(int from, int to, char hex[CACHE_HEX_SIZE])
{
    uint8_t key[EVP_MAX_MD_SIZE];
    AUTO_FREE uint8_t *buf = malloc(HASH_READ);
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    int r = buf && h && EVP_DigestInit_ex(h, EVP_sha256(), NULL) ? 0 : -ENOMEM;
    for (off_t at = 0; r == 0;) {
        ssize_t n = pread(from, buf, HASH_READ, at);
        if (n < 0 && errno != EINTR)
            r = -errno;
        if (n == 0)
            break;
        if (n > 0) {
            EVP_DigestUpdate(h, buf, (size_t)n);
            r = pwrite_all(to, buf, (size_t)n, (uint64_t)at);
            at += n;
        }
    }
    if (r == 0 && !EVP_DigestFinal_ex(h, key, NULL))
        r = -EIO;
    EVP_MD_CTX_free(h);
    if (r == 0)
        cache_hex(key, hex);
    return r;
}

static int build_copy(int fd, const char *name, const struct image_ctx *ctx, struct cache_build *b,
                      const struct stat *st, char hex[CACHE_HEX_SIZE], struct err *e)
{
    uint64_t size;
    int r = cache_check_image(fd, &size);
    if (r < 0) {
        (void)err_sys(e, -r, "the built-in image '%s' is damaged", name);
        err_hint(e, "install msb again");
        return r;
    }
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

/* The built-in image goes through the cache as well: sandboxes keep the one they were made from
 * when a newer msb brings another. */
static int resolve_base(const struct image_ctx *ctx, struct image *ret, struct err *e)
{
    char path[PATH_MAX];
    if (!ctx->assets_dir || (size_t)snprintf(path, sizeof(path), "%s/%s", ctx->assets_dir,
                                             IMAGE_BASE_FILE) >= sizeof(path))
        return err_set(e, ENOENT, "image not found: %s (no assets directory)", IMAGE_BASE_REF);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot open the built-in image '%s'", path);
    struct cache c;
    int r = cache_open(&c, ctx->cache_dir, e);
    if (r < 0)
        return r;
    r = resolve_file(fd, path, &st, ctx, &c, build_copy, ret, e);
    cache_close(&c);
    return r;
}

static bool has_prefix(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_path(const char *arg)
{
    return arg[0] == '/' || has_prefix(arg, "./") || has_prefix(arg, "../") ||
           strcmp(arg, ".") == 0 || strcmp(arg, "..") == 0;
}

/* rootfs.tar.gz without a directory: nobody's registry has images of such names. */
static bool is_tar_name(const char *arg)
{
    static const char *const ends[] = {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd"};
    struct stat st;
    size_t n = strlen(arg);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n > k && strcmp(arg + n - k, ends[i]) == 0)
            return stat(arg, &st) == 0 && S_ISREG(st.st_mode);
    }
    return false;
}

static int not_found(const char *arg, struct err *e)
{
    struct stat st;
    (void)err_set(e, ENOENT, "image not found: %s", arg);
    if (stat(arg, &st) == 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        err_hint(e, "for the %s of that name here, write ./%s",
                 S_ISDIR(st.st_mode) ? "directory" : "file", arg);
    else
        err_hint(e, "pulling from registries is not available yet");
    err_hint(e, "use a directory (./rootfs), a tar archive (./rootfs.tar.gz) or %s",
             IMAGE_BASE_REF);
    return -ENOENT;
}

int image_resolve(const char *image_arg, const struct image_ctx *ctx, struct image *ret,
                  struct err *e)
{
    if (!image_arg || !*image_arg)
        return err_set(e, EINVAL, "no image given");
    if (image_arg[0] == '~' && (image_arg[1] == '/' || !image_arg[1])) {
        char path[PATH_MAX];
        const char *home = getenv("HOME");
        if (!home || !*home)
            return err_set(e, EINVAL, "cannot resolve '%s': HOME is not set", image_arg);
        if ((size_t)snprintf(path, sizeof(path), "%s%s", home, image_arg + 1) >= sizeof(path))
            return err_sys(e, ENAMETOOLONG, "'%.256s'", image_arg);
        return resolve_path(path, ctx, ret, e);
    }
    if (is_path(image_arg) || is_tar_name(image_arg))
        return resolve_path(image_arg, ctx, ret, e);
    if (strcmp(image_arg, IMAGE_BASE_REF) == 0)
        return resolve_base(ctx, ret, e);
    return not_found(image_arg, e);
}
