#include "image/archive/save.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/layer/to_tar.h"
#include "image/oci/document.h"
#include "image/store/internal.h"
#include "image/tar/write.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/json.h"

enum { MEMBER_NAME = DIGEST_HEX_SIZE + 16 };

/* A layer, shared by all images that have it. */
struct layer {
    struct digest was, is; /* the diff_id in the store, and in the archive */
    uint64_t size;
};

struct saved {
    struct digest digest; /* in the store */
    struct oci_document config, manifest;
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
        oci_document_free(&img->config);
        oci_document_free(&img->manifest);
        free(img->layers);
        strlist_free(&img->names);
        strlist_free(&img->full_names);
    }
    free(s->images);
    free(s->layers);
    tar_out_free(&s->out);
}

/* ---- layers ---- */

static int open_layer(struct save *s, const struct digest *diff_id, struct err *e)
{
    uint64_t size;
    int fd = store_open_layer(s->store->layers_fd, diff_id, &size);
    return fd < 0 ? err_sys(e, -fd, "cannot open it") : fd;
}

static int layer_failed(const struct digest *diff_id, int r, struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(diff_id, hex);
    return r < 0 ? err_wrap(e, r, "layer sha256:%.12s", hex) : 0;
}

static int write_layer(struct save *s, const struct digest *diff_id, struct tar_out *o,
                       struct err *e)
{
    AUTO_CLOSE int fd = open_layer(s, diff_id, e);
    return layer_failed(diff_id, fd < 0 ? fd : layer_write_tar(fd, o, e), e);
}

/* The digest and size of the layer's tar. */
static int measure_layer(struct save *s, struct layer *l, struct err *e)
{
    AUTO_CLOSE int fd = open_layer(s, &l->was, e);
    return layer_failed(&l->was, fd < 0 ? fd : layer_measure_tar(fd, &l->is, &l->size, e), e);
}

static int use_layer(struct save *s, const struct digest *diff_id, size_t *ret, struct err *e)
{
    for (*ret = 0; *ret < s->n_layers; (*ret)++)
        if (digest_equal(&s->layers[*ret].was, diff_id))
            return 0;
    if (ARRAY_RESIZE(s->layers, s->n_layers + 1) < 0)
        return err_oom(e);
    struct layer l = {.was = *diff_id};
    int r = measure_layer(s, &l, e);
    if (r == 0)
        s->layers[s->n_layers++] = l;
    return r;
}

/* ---- documents ---- */

/* Makes the documents: the stored ones, with the layers as they are now. */
static int make_documents(struct save *s, struct saved *img, const struct image_record *rec,
                          struct err *e)
{
    AUTO_JSON json_t *config = NULL, *was = NULL;
    int r = oci_documents_load(rec->config, rec->config_len, rec->manifest, rec->manifest_len,
                               &config, &was, e);
    if (r < 0)
        return r;
    AUTO_FREE struct oci_layer *layers = calloc(img->n_layers + 1, sizeof(*layers));
    if (!layers)
        return err_oom(e);
    for (size_t i = 0; i < img->n_layers; i++) {
        const struct layer *l = &s->layers[img->layers[i]];
        layers[i] = (struct oci_layer){.diff_id = l->is, .blob = l->is, .size = l->size};
    }
    r = oci_document_config(&img->config, config, layers, img->n_layers, e);
    if (r == 0)
        r = oci_document_manifest(&img->manifest, &img->config, layers, img->n_layers,
                                  json_object_get(was, "annotations"), e);
    return r;
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
    return r < 0 ? r : make_documents(s, img, rec, e);
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
            r = err_set(e, EIO, "a layer changed while it was being saved");
        if (r == 0)
            r = output(tar_put_padding(&s->out, l->size), e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int put_document(struct save *s, const char *before, const struct oci_document *d,
                        const char *after, struct err *e)
{
    char name[MEMBER_NAME];
    member_name(before, &d->digest, after, name);
    return output(tar_put_file(&s->out, name, d->text, d->len), e);
}

static int put_json(struct save *s, const char *name, const json_t *j, struct err *e)
{
    struct oci_document d = {0};
    int r = oci_document_set(&d, j, e);
    if (r == 0)
        r = output(tar_put_file(&s->out, name, d.text, d.len), e);
    oci_document_free(&d);
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
                                                    json_list(img->names.v), "Layers", layers));
        if (!seen_document(s, i, false))
            r = put_document(s, "", &img->config, ".json", e);
    }
    return r < 0 ? r : put_json(s, "manifest.json", list, e);
}

/* podman and skopeo read one of the names, Docker and containerd the other. */
static int add_entry(json_t *list, const struct saved *img, const char *name)
{
    json_t *d = oci_descriptor_json(OCI_TYPE_MANIFEST, &img->manifest.digest, img->manifest.len);
    if (d && name)
        (void)json_object_set_new(d, "annotations",
                                  json_pack("{s:s, s:s}", "io.containerd.image.name", name,
                                            "org.opencontainers.image.ref.name", name));
    return json_array_append_new(list, d);
}

/* Directories must be listed: skopeo gives missing ones to root, which only root can do. */
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
                                        OCI_TYPE_INDEX, "manifests", list);
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
