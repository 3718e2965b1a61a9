#include "image/archive/save.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/layer/to_tar.h"
#include "image/oci/json.h"
#include "image/store/internal.h"
#include "image/tar/write.h"
#include "util/cleanup.h"

#define OCI_TYPE "application/vnd.oci.image."

enum { MEMBER_NAME = DIGEST_HEX_SIZE + 16 };

/* A layer, shared by all images that have it. */
struct layer {
    struct digest was, is; /* the diff_id in the store, and in the archive */
    uint64_t size;
};

struct document {
    char *text;
    size_t len;
    struct digest digest;
};

struct saved {
    struct digest digest; /* in the store */
    struct document config, manifest;
    size_t *layers; /* indexes */
    size_t n_layers;
    struct strlist names, full_names;
};

struct save {
    struct image_store *store;
    struct layer *layers;
    size_t n_layers;
    struct saved *images;
    size_t n_images, max_images; /* one for each reference */
    struct tar_out out;
};

static int output(int r, struct err *e)
{
    return r < 0 ? err_sys(e, -r, "cannot write the archive") : 0;
}

static void free_all(struct save *s)
{
    for (size_t i = 0; i < s->n_images; i++) {
        struct saved *img = &s->images[i];
        free(img->config.text);
        free(img->manifest.text);
        free(img->layers);
        strlist_free(&img->names);
        strlist_free(&img->full_names);
    }
    free(s->images);
    free(s->layers);
    tar_out_free(&s->out);
}

/* ---- layers ---- */

static int write_layer(struct save *s, const struct digest *diff_id, struct tar_out *o,
                       struct err *e)
{
    uint64_t size;
    AUTO_CLOSE int fd = store_open_layer(s->store->layers_fd, diff_id, &size);
    char hex[DIGEST_HEX_SIZE];
    digest_hex(diff_id, hex);
    int r = fd < 0 ? err_sys(e, -fd, "cannot open it") : layer_write_tar(fd, o, e);
    return r < 0 ? err_wrap(e, r, "layer sha256:%.12s", hex) : 0;
}

/* The digest and size of the layer's tar. */
static int measure_layer(struct save *s, struct layer *l, struct err *e)
{
    struct hasher h;
    struct tar_out o;
    hasher_init(&h);
    int r = tar_out_init(&o, -1, &h) < 0 ? err_oom(e) : write_layer(s, &l->was, &o, e);
    if (r == 0)
        (void)tar_out_flush(&o);
    l->size = o.bytes;
    tar_out_free(&o);
    l->is = hasher_finish(&h);
    return r;
}

static int use_layer(struct save *s, const struct digest *diff_id, size_t *ret, struct err *e)
{
    for (*ret = 0; *ret < s->n_layers; (*ret)++)
        if (digest_equal(&s->layers[*ret].was, diff_id))
            return 0;
    struct layer *more = reallocarray(s->layers, s->n_layers + 1, sizeof(*more));
    if (!more)
        return err_oom(e);
    s->layers = more;
    struct layer l = {.was = *diff_id};
    int r = measure_layer(s, &l, e);
    if (r == 0)
        s->layers[s->n_layers++] = l;
    return r;
}

/* ---- documents ---- */

static int set_document(struct document *d, const json_t *j, struct err *e)
{
    d->text = j ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!d->text)
        return err_oom(e);
    d->len = strlen(d->text);
    d->digest = digest_of(d->text, d->len);
    return 0;
}

/* The configuration as it was, with the layers as they are. */
static int make_config(struct save *s, struct saved *img, const struct image_record *rec,
                       struct err *e)
{
    AUTO_JSON json_t *j =
        oci_json_load(rec->config, rec->config_len, OCI_CONFIG_MAX, "image's configuration", e);
    if (!j)
        return -EBADMSG;
    json_t *ids = json_array();
    for (size_t i = 0; i < img->n_layers; i++) {
        char text[DIGEST_TEXT_SIZE];
        digest_text(&s->layers[img->layers[i]].is, text);
        (void)json_array_append_new(ids, json_string(text));
    }
    json_t *rootfs = json_pack("{s:s, s:o}", "type", "layers", "diff_ids", ids);
    if (json_object_set_new(j, "rootfs", rootfs) < 0)
        return err_oom(e);
    return set_document(&img->config, j, e);
}

static json_t *descriptor(const char *type, const struct digest *d, uint64_t size)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    return json_pack("{s:s, s:s, s:I}", "mediaType", type, "digest", text, "size",
                     (json_int_t)size);
}

static int make_manifest(struct save *s, struct saved *img, const struct image_record *rec,
                         struct err *e)
{
    AUTO_JSON json_t *was =
        oci_json_load(rec->manifest, rec->manifest_len, OCI_DOCUMENT_MAX, "manifest", e);
    if (!was)
        return -EBADMSG;
    json_t *layers = json_array(), *notes = json_object_get(was, "annotations");
    for (size_t i = 0; i < img->n_layers; i++) {
        const struct layer *l = &s->layers[img->layers[i]];
        (void)json_array_append_new(layers, descriptor(OCI_TYPE "layer.v1.tar", &l->is, l->size));
    }
    AUTO_JSON json_t *j = json_pack(
        "{s:i, s:s, s:o, s:o}", "schemaVersion", 2, "mediaType", OCI_TYPE "manifest.v1+json",
        "config", descriptor(OCI_TYPE "config.v1+json", &img->config.digest, img->config.len),
        "layers", layers);
    if (j && json_is_object(notes) && json_object_set(j, "annotations", notes) < 0)
        return err_oom(e);
    return set_document(&img->manifest, j, e);
}

/* ---- images ---- */

static int make_image(struct save *s, const struct image_record *rec, struct saved *img,
                      struct err *e)
{
    img->digest = rec->digest;
    img->layers = calloc(rec->n_layers + 1, sizeof(size_t));
    if (!img->layers)
        return err_oom(e);
    int r = 0;
    for (; r == 0 && img->n_layers < rec->n_layers; img->n_layers++)
        r = use_layer(s, &rec->layers[img->n_layers].diff_id, &img->layers[img->n_layers], e);
    if (r == 0)
        r = make_config(s, img, rec, e);
    return r < 0 ? r : make_manifest(s, img, rec, e);
}

static int find_or_make(struct save *s, const struct image_record *rec, struct saved **ret,
                        struct err *e)
{
    for (size_t i = 0; i < s->n_images; i++)
        if (digest_equal(&s->images[i].digest, &rec->digest)) {
            *ret = &s->images[i];
            return 0;
        }
    assert(s->n_images < s->max_images);
    *ret = &s->images[s->n_images++];
    return make_image(s, rec, *ret, e);
}

/* Names are kept; digests are not, since the image in the archive has a different one. */
static int add_name(struct saved *img, const struct reference *ref, struct err *e)
{
    if (ref->digest || !ref->tag)
        return 0;
    AUTO_FREE char *name = reference_familiar(ref), *full = reference_full(ref);
    if (!name || !full)
        return err_oom(e);
    if (strlist_has(&img->full_names, full))
        return 0;
    if (strlist_add(&img->names, name) < 0 || strlist_add(&img->full_names, full) < 0)
        return err_oom(e);
    return 0;
}

static int add_reference(struct save *s, const struct reference *ref, struct err *e)
{
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    struct saved *img;
    int r = image_store_find(s->store, ref, &rec, e);
    if (r < 0)
        return r;
    r = find_or_make(s, &rec, &img, e);
    if (r < 0) {
        AUTO_FREE char *name = reference_familiar(ref);
        return err_wrap(e, r, "cannot save '%s'", name ? name : "?");
    }
    return add_name(img, ref, e);
}

/* ---- the archive ---- */

static void member_name(const char *before, const struct digest *d, const char *after,
                        char name[MEMBER_NAME])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(d, hex);
    (void)snprintf(name, MEMBER_NAME, "%s%s%s", before, hex, after);
}

/* Writes each content once, however many images have it. */
static bool seen_layer(const struct save *s, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (digest_equal(&s->layers[k].is, &s->layers[i].is))
            return true;
    return false;
}

static int put_layers(struct save *s, const char *before, const char *after, struct err *e)
{
    for (size_t i = 0; i < s->n_layers; i++) {
        const struct layer *l = &s->layers[i];
        char name[MEMBER_NAME];
        if (seen_layer(s, i))
            continue;
        member_name(before, &l->is, after, name);
        const struct tar_entry t = {.path = name, .type = '0', .mode = 0644, .size = l->size};
        int r = output(tar_put_header(&s->out, &t), e);
        uint64_t from = s->out.bytes;
        if (r == 0)
            r = write_layer(s, &l->was, &s->out, e);
        if (r == 0 && s->out.bytes - from != l->size)
            r = err_set(e, EIO, "a layer changed while it was saved");
        if (r == 0)
            r = output(tar_put_padding(&s->out, l->size), e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int put_document(struct save *s, const char *before, const struct document *d,
                        const char *after, struct err *e)
{
    char name[MEMBER_NAME];
    member_name(before, &d->digest, after, name);
    return output(tar_put_file(&s->out, name, d->text, d->len), e);
}

static int put_json(struct save *s, const char *name, const json_t *j, struct err *e)
{
    struct document d = {0};
    int r = set_document(&d, j, e);
    if (r == 0)
        r = output(tar_put_file(&s->out, name, d.text, d.len), e);
    free(d.text);
    return r;
}

/* Two images may have the same documents here. */
static bool seen_document(const struct save *s, size_t i, bool manifest)
{
    const struct saved *v = s->images;
    for (size_t k = 0; k < i; k++)
        if (manifest ? digest_equal(&v[k].manifest.digest, &v[i].manifest.digest)
                     : digest_equal(&v[k].config.digest, &v[i].config.digest))
            return true;
    return false;
}

static json_t *name_list(const struct strlist *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        (void)json_array_append_new(a, json_string(l->v[i]));
    return a;
}

static int put_docker(struct save *s, struct err *e)
{
    AUTO_JSON json_t *list = json_array();
    int r = put_layers(s, "", ".tar", e);
    for (size_t i = 0; r == 0 && i < s->n_images; i++) {
        const struct saved *img = &s->images[i];
        char config[MEMBER_NAME];
        json_t *layers = json_array();
        for (size_t k = 0; k < img->n_layers; k++) {
            char name[MEMBER_NAME];
            member_name("", &s->layers[img->layers[k]].is, ".tar", name);
            (void)json_array_append_new(layers, json_string(name));
        }
        member_name("", &img->config.digest, ".json", config);
        (void)json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "Config", config, "RepoTags",
                                                    name_list(&img->names), "Layers", layers));
        if (!seen_document(s, i, false))
            r = put_document(s, "", &img->config, ".json", e);
    }
    return r < 0 ? r : put_json(s, "manifest.json", list, e);
}

/* podman and skopeo read one of the names, Docker and containerd the other. */
static int add_entry(json_t *list, const struct saved *img, const char *name)
{
    json_t *d = descriptor(OCI_TYPE "manifest.v1+json", &img->manifest.digest, img->manifest.len);
    if (d && name)
        (void)json_object_set_new(d, "annotations",
                                  json_pack("{s:s, s:s}", "io.containerd.image.name", name,
                                            "org.opencontainers.image.ref.name", name));
    return json_array_append_new(list, d);
}

/* Directories must be listed: skopeo makes missing ones root's, which only root can. */
static int put_directory(struct save *s, const char *path, struct err *e)
{
    const struct tar_entry t = {.path = path, .type = '5', .mode = 0755};
    return output(tar_put_header(&s->out, &t), e);
}

static int put_oci(struct save *s, struct err *e)
{
    static const char layout[] = "{\"imageLayoutVersion\":\"1.0.0\"}", blobs[] = "blobs/sha256/";
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_images; i++) {
        const struct saved *img = &s->images[i];
        for (size_t k = 0; k < MAX(img->full_names.n, (size_t)1); k++)
            (void)add_entry(list, img, img->full_names.n ? img->full_names.v[k] : NULL);
    }
    int r = output(tar_put_file(&s->out, "oci-layout", layout, strlen(layout)), e);
    AUTO_JSON json_t *index = json_pack("{s:i, s:s, s:o}", "schemaVersion", 2, "mediaType",
                                        OCI_TYPE "index.v1+json", "manifests", list);
    if (r == 0)
        r = put_json(s, "index.json", index, e);
    if (r == 0)
        r = put_directory(s, "blobs/", e);
    if (r == 0)
        r = put_directory(s, blobs, e);
    for (size_t i = 0; r == 0 && i < s->n_images; i++) {
        if (!seen_document(s, i, true))
            r = put_document(s, blobs, &s->images[i].manifest, "", e);
        if (r == 0 && !seen_document(s, i, false))
            r = put_document(s, blobs, &s->images[i].config, "", e);
    }
    return r < 0 ? r : put_layers(s, blobs, "", e);
}

int save_images(struct image_store *store, const struct reference *refs, size_t n,
                enum save_format format, int out_fd, struct err *e)
{
    struct save s = {.store = store, .max_images = n, .out = {.fd = -1}};
    if (n > SAVE_IMAGES_MAX)
        return err_set(e, E2BIG, "%zu images are too many for one archive; at most %d", n,
                       SAVE_IMAGES_MAX);
    s.images = calloc(n + 1, sizeof(*s.images));
    if (!s.images || tar_out_init(&s.out, out_fd, NULL) < 0) {
        free_all(&s);
        return err_oom(e);
    }
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_reference(&s, &refs[i], e);
    if (r == 0)
        r = format == SAVE_OCI ? put_oci(&s, e) : put_docker(&s, e);
    if (r == 0)
        r = output(tar_put_end(&s.out), e);
    if (r == 0)
        r = output(tar_out_flush(&s.out), e);
    free_all(&s);
    return r;
}
