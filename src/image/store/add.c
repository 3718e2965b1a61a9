/* Adds layers, their merged metadata, and images to the image store. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "image/erofs/disk.h"
#include "image/layer/to_tar.h"
#include "image/store/internal.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

/* --- layers --------------------------------------------------------------------------------- */

/* Takes the lock under which one thing of a kind ("layer", "disk") is made. */
static int build_lock(struct cache_build *b, const struct image_store *s, const char *kind,
                      const struct digest *d, struct err *e)
{
    char text[128], hex[DIGEST_HEX_SIZE], key[DIGEST_HEX_SIZE];
    digest_hex(d, hex);
    (void)snprintf(text, sizeof(text), "%.16s:%d:%s", kind, CACHE_VERSION, hex);
    struct digest hashed = digest_of(text, strlen(text));
    digest_hex(&hashed, key);
    return cache_build_lock(b, &s->cache, key, e);
}

/* Under the layer's lock. */
static int make_layer(struct image_store *s, struct cache_build *b, const struct layer_want *want,
                      layer_open_fn open, void *ctx, struct layer_progress *progress,
                      struct image_layer *ret, struct err *e)
{
    struct stream *in = NULL;
    struct layer_made made = {0};
    char name[RECORD_NAME_SIZE];
    int r = cache_build_begin(b, e);
    if (r == 0)
        r = open(ctx, &in, e);
    if (r < 0)
        return r;
    r = layer_convert(in, want, b->fd, s->cache.tmp_fd, progress, &made, e);
    stream_close(in);
    if (r < 0)
        return r;
    if (!digest_equal(&made.diff_id, want->diff_id))
        return err_set(e, EBADMSG, "%s does not match the image's configuration", want->name);
    record_erofs_name(want->diff_id, name);
    r = cache_build_publish_as(b, s->layers_fd, name, e);
    if (r < 0)
        return r;
    ret->blob = made.blob;
    ret->blob_size = made.blob_size;
    ret->erofs_size = made.erofs_size;
    return 0;
}

int image_store_add_layer(struct image_store *s, const struct layer_want *want, layer_open_fn open,
                          void *ctx, struct layer_progress *progress, struct image_layer *ret,
                          struct err *e)
{
    struct image_layer l = {.diff_id = *want->diff_id, .blob_size = want->blob_size};
    if (want->blob)
        l.blob = *want->blob;
    int r = 0;
    if (want->again || !image_store_has_layer(s, want->diff_id, &l.erofs_size)) {
        AUTO_CACHE_BUILD struct cache_build b = CACHE_BUILD_NONE;
        r = build_lock(&b, s, "layer", want->diff_id, e);
        if (r == 0 && (want->again || !image_store_has_layer(s, want->diff_id, &l.erofs_size)))
            r = make_layer(s, &b, want, open, ctx, progress, &l, e);
    }
    if (r == 0)
        *ret = l;
    return r;
}

/* No other process makes this one: any name will do for its lock. */
int image_store_make_layer(struct image_store *s, const struct layer_want *want, struct stream *in,
                           struct image_layer *ret, struct err *e)
{
    AUTO_CACHE_BUILD struct cache_build b = CACHE_BUILD_NONE;
    struct layer_made made = {0};
    struct digest key;
    char name[RECORD_NAME_SIZE];
    if (getrandom(key.b, sizeof(key.b), 0) != sizeof(key.b))
        return err_sys(e, errno, "cannot get random bytes");
    int r = build_lock(&b, s, "made", &key, e);
    if (r == 0)
        r = cache_build_begin(&b, e);
    if (r == 0)
        r = layer_convert(in, want, b.fd, s->cache.tmp_fd, NULL, &made, e);
    if (r < 0)
        return r;
    struct image_layer l = {.erofs_size = made.erofs_size};
    r = layer_measure_tar(b.fd, &l.diff_id, &l.blob_size, e);
    if (r < 0)
        return r;
    l.blob = l.diff_id;
    record_erofs_name(&l.diff_id, name);
    if (!image_store_has_layer(s, &l.diff_id, &l.erofs_size))
        r = cache_build_publish_as(&b, s->layers_fd, name, e);
    if (r == 0)
        *ret = l;
    return r;
}

/* --- disks ---------------------------------------------------------------------------------- */

static struct digest disk_name(const struct image_layer *layers, size_t n)
{
    struct hasher h;
    char head[32];
    hasher_init(&h);
    (void)snprintf(head, sizeof(head), "disk:%d:", CACHE_VERSION);
    hasher_update(&h, head, strlen(head));
    for (size_t i = 0; i < n; i++)
        hasher_update(&h, layers[i].diff_id.b, DIGEST_SIZE);
    return hasher_finish(&h);
}

static bool has_disk(const struct image_store *s, const struct digest *disk, uint64_t layers_size,
                     uint64_t *ret_size)
{
    char name[RECORD_NAME_SIZE];
    record_erofs_name(disk, name);
    AUTO_CLOSE int fd = openat(s->disks_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return fd >= 0 && cache_check_image(fd, layers_size, ret_size) == 0;
}

static int write_disk(struct image_store *s, struct cache_build *b,
                      const struct image_layer *layers, size_t n, struct err *e)
{
    int fds[OCI_LAYERS_MAX];
    size_t opened = 0;
    int r = 0;
    for (; r == 0 && opened < n; opened += r == 0) {
        uint64_t size;
        fds[opened] = store_open_layer(s->layers_fd, &layers[opened].diff_id, &size);
        if (fds[opened] < 0)
            r = err_sys(e, -fds[opened], "cannot open a layer of the image");
    }
    if (r == 0)
        r = disk_write_metadata(fds, n, b->fd, s->cache.tmp_fd, IMAGE_EXPANDED_MAX_DEFAULT, e);
    for (size_t i = 0; i < opened; i++)
        close_fd(&fds[i]);
    return r;
}

static int make_disk(struct image_store *s, const struct image_layer *layers, size_t n,
                     const struct digest *disk, bool again, uint64_t *ret_size, struct err *e)
{
    uint64_t layers_size = 0;
    for (size_t i = 0; i < n; i++)
        layers_size += layers[i].erofs_size;
    if (n > OCI_LAYERS_MAX)
        return err_set(e, E2BIG, "the image has more than %d layers", OCI_LAYERS_MAX);
    if (!again && has_disk(s, disk, layers_size, ret_size))
        return 0;
    AUTO_CACHE_BUILD struct cache_build b = CACHE_BUILD_NONE;
    int r = build_lock(&b, s, "disk", disk, e);
    if (r < 0 || (!again && has_disk(s, disk, layers_size, ret_size)))
        return r;
    r = cache_build_begin(&b, e);
    if (r == 0)
        r = write_disk(s, &b, layers, n, e);
    if (r < 0)
        return r;
    struct stat st;
    if (fstat(b.fd, &st) < 0)
        return err_sys(e, errno, "cannot stat the image's disk");
    *ret_size = (uint64_t)st.st_size;
    char name[RECORD_NAME_SIZE];
    record_erofs_name(disk, name);
    return cache_build_publish_as(&b, s->disks_fd, name, e);
}

/* --- images --------------------------------------------------------------------------------- */

static int write_doc(struct image_store *s, const struct digest *d, const void *p, size_t n,
                     struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    AUTO_FREE char *there = NULL;
    size_t len;
    if (store_read_doc(s->docs_fd, d, n, &there, &len) == 0)
        return 0;
    digest_hex(d, hex);
    int r = file_replace_at(s->docs_fd, hex, p, n, 0600, true);
    return r < 0 ? err_sys(e, -r, "cannot store the image's documents") : 0;
}

/* The documents must agree with each other and with the layers that were added. */
static int check_documents(const struct oci_manifest *m, const struct oci_config *c,
                           const struct digest *config, const struct image_layer *layers, size_t n,
                           struct err *e)
{
    if (!digest_equal(&m->config.digest, config))
        return err_set(e, EBADMSG, "the image's configuration is not the one its manifest names");
    if (m->n_layers != c->n_diff_ids || n != c->n_diff_ids)
        return err_set(
            e, EBADMSG,
            "the image's manifest lists %zu layers, its configuration %zu, and %zu were added",
            m->n_layers, c->n_diff_ids, n);
    for (size_t i = 0; i < n; i++)
        if (!digest_equal(&layers[i].diff_id, &c->diff_ids[i]))
            return err_set(e, EBADMSG, "layer %zu is not the one in the image's configuration", i);
    return 0;
}

/* Fills in the record's layers: what the manifest says about the blobs, and what is stored. */
static int fill_layers(struct image_store *s, const struct oci_manifest *m,
                       const struct oci_config *c, struct record *r, struct err *e)
{
    r->layers = calloc(m->n_layers + 1, sizeof(*r->layers));
    if (!r->layers)
        return err_oom(e);
    for (size_t i = 0; i < m->n_layers; i++) {
        struct image_layer *l = &r->layers[r->n_layers++];
        const struct oci_descriptor *d = &m->layers[i];
        *l = (struct image_layer){
            .diff_id = c->diff_ids[i], .blob = d->digest, .blob_size = d->size};
        bool typed = d->media_type && strlen(d->media_type) <= RECORD_MEDIA_TYPE_MAX;
        if (typed && !(l->media_type = strdup(d->media_type)))
            return err_oom(e);
        if (!image_store_has_layer(s, &l->diff_id, &l->erofs_size)) {
            char text[DIGEST_TEXT_SIZE];
            digest_text(&l->diff_id, text);
            return err_set(e, ENOENT, "layer %s is not in the image store", text);
        }
    }
    return 0;
}

/* again: makes its disk anew. */
static int record_image(struct image_store *s, const struct digest *image, struct record *r,
                        bool again, struct err *e)
{
    r->disk = disk_name(r->layers, r->n_layers);
    int code = make_disk(s, r->layers, r->n_layers, &r->disk, again, &r->disk_size, e);
    if (code < 0)
        return code;
    code = record_write(s->cache.images_fd, image, r);
    return code < 0 ? err_sys(e, -code, "cannot record the image") : 0;
}

/* Bottom up, so that an existing image is always complete. */
static int store_image(struct image_store *s, const struct oci_manifest *m,
                       const struct oci_config *c, const struct digest *image, struct record *r,
                       struct err *e)
{
    AUTO_RECORD struct record old = {0};
    r->stored_ns = realtime_ns();
    if (record_read(s->cache.images_fd, image, &old) == 0)
        r->stored_ns = old.stored_ns;
    int code = fill_layers(s, m, c, r, e);
    return code < 0 ? code : record_image(s, image, r, false, e);
}

int image_store_add_image(struct image_store *s, const void *manifest, size_t manifest_len,
                          const void *config, size_t config_len, const struct image_layer *layers,
                          size_t n_layers, struct digest *ret, struct err *e)
{
    AUTO_OCI_MANIFEST struct oci_manifest m = {0};
    AUTO_OCI_CONFIG struct oci_config c = {0};
    AUTO_RECORD struct record rec = {0};
    struct digest image;
    int r = oci_manifest_parse(manifest, manifest_len, &m, e);
    if (r == 0)
        r = oci_config_parse(config, config_len, &c, e);
    image = digest_of(manifest, manifest_len);
    rec.config = digest_of(config, config_len);
    if (r == 0)
        r = check_documents(&m, &c, &rec.config, layers, n_layers, e);
    if (r == 0)
        r = write_doc(s, &rec.config, config, config_len, e);
    if (r == 0)
        r = write_doc(s, &image, manifest, manifest_len, e);
    if (r == 0)
        r = store_image(s, &m, &c, &image, &rec, e);
    if (r == 0)
        *ret = image;
    return r;
}

/* --- making disks again --------------------------------------------------------------------- */

static bool share_layers(const struct record *a, const struct record *b)
{
    for (size_t i = 0; i < a->n_layers; i++)
        for (size_t k = 0; k < b->n_layers; k++)
            if (digest_equal(&a->layers[i].diff_id, &b->layers[k].diff_id))
                return true;
    return false;
}

/* An error that says nothing about the image itself: the next attempt may succeed. */
static bool is_passing(int code)
{
    return code == -ENOSPC || code == -EDQUOT || code == -ENOMEM || code == -EMFILE ||
           code == -ENFILE || code == -EINTR;
}

static int remake_disk(struct image_store *s, const struct digest *image, struct record *r,
                       struct err *e)
{
    char name[RECORD_NAME_SIZE];
    for (size_t i = 0; i < r->n_layers; i++)
        (void)image_store_has_layer(s, &r->layers[i].diff_id, &r->layers[i].erofs_size);
    int code = record_image(s, image, r, true, e);
    if (code == 0 || is_passing(code))
        return code;
    record_erofs_name(&r->disk, name);
    (void)unlinkat(s->disks_fd, name, 0); /* without it, the image counts as missing */
    return code;
}

/* Names are read first: writing records changes the directory. */
static int list_records(const struct image_store *s, struct strlist *names)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(s->cache.images_fd, ".");
    if (!d)
        return -errno;
    int r = 0;
    for (const struct dirent *ent; r == 0 && (ent = readdir(d));)
        r = strlist_add(names, ent->d_name);
    return r;
}

/* The disks of all others that share a layer with it. Only a passing error counts. */
static int remake_others(struct image_store *s, const struct digest *image,
                         const struct record *own, const struct strlist *names, struct err *e)
{
    for (size_t i = 0; i < names->n; i++) {
        struct digest d;
        struct err why = {0};
        AUTO_RECORD struct record rec = {0};
        if (!record_digest(names->v[i], &d) || digest_equal(&d, image))
            continue;
        int r = record_read(s->cache.images_fd, &d, &rec);
        if (r < 0)
            (void)err_sys(&why, -r, "cannot read the record of an image");
        else if (share_layers(own, &rec))
            r = remake_disk(s, &d, &rec, &why);
        if (is_passing(r)) {
            err_copy(e, &why);
            return r;
        }
    }
    return 0;
}

int image_store_remake_disks(struct image_store *s, const struct digest *image, struct err *e)
{
    AUTO_RECORD struct record own = {0};
    AUTO_STRLIST struct strlist names = {0};
    int r = record_read(s->cache.images_fd, image, &own);
    if (r == 0)
        r = list_records(s, &names);
    if (r < 0)
        return err_sys(e, -r, "cannot list the images");
    r = remake_disk(s, image, &own, e);
    if (is_passing(r))
        return r;
    int others = remake_others(s, image, &own, &names, e);
    return others < 0 ? others : r;
}
