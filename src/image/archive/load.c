#include "image/archive/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "image/archive/load_internal.h"
#include "image/store/record.h"
#include "util/array.h"

enum { SHORT_HEX = 12 };

void load_source_free(struct load_source *src)
{
    free(src->manifest);
    free(src->config);
    for (size_t i = 0; src->layers && i < src->m.n_layers; i++)
        free(src->layers[i]);
    free(src->layers);
    oci_manifest_free(&src->m);
    oci_config_free(&src->c);
    strlist_free(&src->names);
    *src = (struct load_source){0};
}

/* ---- layers ---- */

struct open_layer {
    const struct bundle *b;
    const char *name;
};

static int open_layer(void *ctx, struct stream **ret, struct err *e)
{
    const struct open_layer *o = ctx;
    return bundle_stream(o->b, o->name, ret, e);
}

static int add_layer(struct load *l, const struct load_source *src, size_t i,
                     struct image_layer *ret, struct err *e)
{
    const struct oci_descriptor *d = &src->m.layers[i];
    const struct digest *diff_id = &src->c.diff_ids[i];
    char hex[DIGEST_HEX_SIZE], name[64];
    digest_hex(diff_id, hex);
    (void)snprintf(name, sizeof(name), "layer %zu (sha256:%.*s)", i + 1, SHORT_HEX, hex);
    uint64_t size;
    if (!bundle_has(&l->bundle, src->layers[i], &size))
        return err_set(e, ENOENT, "%s: the archive has no '%.256s'", name, src->layers[i]);
    if (size != d->size)
        return err_set(e, EBADMSG, "%s: it has %llu bytes, but the manifest says %llu", name,
                       (unsigned long long)size, (unsigned long long)d->size);
    /* An uncompressed layer is its own tar: only one digest to check. */
    bool plain = digest_equal(&d->digest, diff_id);
    struct layer_want want = {.blob = plain ? NULL : &d->digest,
                              .blob_size = size,
                              .diff_id = diff_id,
                              .name = name,
                              .layer = true,
                              .max_bytes = l->opt->max_expanded};
    struct open_layer o = {&l->bundle, src->layers[i]};
    return image_store_add_layer(l->store, &want, open_layer, &o, NULL, ret, e);
}

static int add_image(struct load *l, struct load_source *src, struct digest *ret, struct err *e)
{
    size_t n = src->m.n_layers;
    struct image_layer *layers = calloc(n + 1, sizeof(*layers));
    if (!layers)
        return err_oom(e);
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_layer(l, src, i, &layers[i], e);
    if (r == 0)
        r = image_store_add_image(l->store, src->manifest, src->manifest_len, src->config,
                                  src->config_len, layers, n, ret, e);
    record_layers_free(layers, n);
    return r;
}

int load_add(struct load *l, struct load_source *src, struct err *e)
{
    struct digest d;
    int r = oci_check(&src->m, &src->c, &l->platform, e);
    if (r == -ENOENT && !l->opt->platform && e) {
        char text[OCI_PLATFORM_TEXT];
        oci_platform_text(&(struct oci_platform){src->c.os, src->c.architecture, src->c.variant},
                          text);
        err_hint(e, "to load it anyway, use --platform %s", text);
    }
    if (r == 0)
        r = add_image(l, src, &d, e);
    if (r < 0)
        return r;
    if (ARRAY_RESIZE(l->images, l->n + 1) < 0)
        return err_oom(e);
    l->images[l->n++] = (struct loaded){.digest = d, .names = src->names};
    src->names = (struct strlist){0};
    return 0;
}

/* ---- references ---- */

int load_check_names(const struct load *l, size_t n, bool named, struct err *e)
{
    if (l->opt->tag && n > 1)
        return err_set(e, EINVAL, "the archive has %zu images; -t can name only one", n);
    if (l->opt->tag || named)
        return 0;
    return err_hinted(e, err_set(e, EINVAL, "the archive has no name for its image"),
                      "give it one: msb load -t NAME:TAG ...");
}

static int tag_one(struct load *l, const struct reference *ref, const struct digest *d,
                   struct err *e)
{
    int r = image_store_tag(l->store, ref, d, false, e);
    if (r == 0 && l->opt->loaded)
        l->opt->loaded(l->opt->ctx, ref, d);
    return r;
}

/* Reads every name before the first one is set. */
static int parse_names(const struct load *l, struct reference **ret, size_t *ret_n, struct err *e)
{
    size_t total = 0;
    for (size_t i = 0; i < l->n; i++)
        total += l->images[i].names.n;
    struct reference *refs = calloc(total + 1, sizeof(*refs));
    if (!refs)
        return err_oom(e);
    *ret = refs;
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->images[i].names.n; k++) {
            int r = reference_parse(l->images[i].names.v[k], &refs[*ret_n], e);
            if (r < 0)
                return r;
            if (refs[(*ret_n)++].digest)
                return err_set(e, EINVAL, "the archive names an image by digest: '%.256s'",
                               l->images[i].names.v[k]);
        }
    return 0;
}

static int tag_all(struct load *l, struct err *e)
{
    struct reference *refs = NULL;
    size_t n = 0, at = 0;
    int r = parse_names(l, &refs, &n, e);
    for (size_t i = 0; r == 0 && i < l->n; i++)
        for (size_t k = 0; r == 0 && k < l->images[i].names.n; k++)
            r = tag_one(l, &refs[at++], &l->images[i].digest, e);
    for (size_t i = 0; i < n; i++)
        reference_free(&refs[i]);
    free(refs);
    return r;
}

/* ---- the archive ---- */

static int no_format(const struct load *l, struct err *e)
{
    int r = err_set(e, EINVAL, "it is not an image archive: it contains neither %s nor %s",
                    LOAD_MANIFEST, LOAD_INDEX);
    if (bundle_has(&l->bundle, "repositories", NULL))
        err_hint(e, "it was written by a Docker older than 1.10: load it there and save it with a "
                    "newer one");
    else if (l->bundle.directory)
        err_hint(e, "to run a directory that holds a root file system: msb run ./DIRECTORY");
    else
        err_hint(e, "to run a tar of a root file system: msb run ./FILE.tar");
    return r;
}

static int load_all(struct load *l, struct err *e)
{
    const struct bundle *b = &l->bundle;
    int r;
    if (bundle_has(b, LOAD_LAYOUT, NULL) && bundle_has(b, LOAD_INDEX, NULL))
        r = load_oci(l, e);
    else if (!b->directory && bundle_has(b, LOAD_MANIFEST, NULL))
        r = load_docker(l, e);
    else
        return no_format(l, e);
    if (r < 0)
        return r;
    return l->opt->tag ? tag_one(l, l->opt->tag, &l->images[0].digest, e) : tag_all(l, e);
}

static int set_platform(struct load *l, struct err *e)
{
    const struct oci_platform *want = l->opt->platform;
    char text[OCI_PLATFORM_TEXT];
    if (want) {
        oci_platform_text(want, text);
        return oci_platform_parse(text, &l->platform, e);
    }
    oci_platform_host(&l->platform);
    return 0;
}

int load_images(struct image_store *s, int fd, const struct load_options *opt, struct err *e)
{
    struct load l = {.store = s, .opt = opt, .bundle = {.fd = -1}};
    uint64_t max = opt->max_expanded ? opt->max_expanded : IMAGE_EXPANDED_MAX_DEFAULT;
    int r = set_platform(&l, e);
    if (r == 0)
        r = bundle_open(&l.bundle, fd, s->cache.tmp_fd, max, e);
    if (r == 0)
        r = load_all(&l, e);
    for (size_t i = 0; i < l.n; i++)
        strlist_free(&l.images[i].names);
    free(l.images);
    bundle_close(&l.bundle);
    oci_platform_free(&l.platform);
    return r;
}
