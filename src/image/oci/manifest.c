/* Manifests and indexes. */
#include "image/oci/oci.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/oci/json.h"
#include "util/cleanup.h"
#include "util/words.h"

enum { MEDIA_TYPE_MAX = 255, REF_NAME_MAX = 1024, PLATFORMS_SHOWN = 12 };

#define OCI_TYPE "application/vnd.oci.image."
#define DOCKER_TYPE "application/vnd.docker."

static const char manifest_types[] =
    OCI_TYPE "manifest.v1+json|" DOCKER_TYPE "distribution.manifest.v2+json";
static const char index_types[] =
    OCI_TYPE "index.v1+json|" DOCKER_TYPE "distribution.manifest.list.v2+json";
static const char schema1_types[] =
    DOCKER_TYPE "distribution.manifest.v1+json|" DOCKER_TYPE "distribution.manifest.v1+prettyjws";
static const char config_types[] = OCI_TYPE "config.v1+json|" DOCKER_TYPE "container.image.v1+json|"
                                            /* what Docker 1.10 pushed */
                                            "application/octet-stream";
static const struct {
    const char *type;
    enum oci_compression compression;
} layer_types[] = {
    {OCI_TYPE "layer.v1.tar", OCI_PLAIN},
    {OCI_TYPE "layer.v1.tar+gzip", OCI_GZIP},
    {OCI_TYPE "layer.v1.tar+zstd", OCI_ZSTD},
    {OCI_TYPE "layer.nondistributable.v1.tar", OCI_PLAIN},
    {OCI_TYPE "layer.nondistributable.v1.tar+gzip", OCI_GZIP},
    {OCI_TYPE "layer.nondistributable.v1.tar+zstd", OCI_ZSTD},
    {DOCKER_TYPE "image.rootfs.diff.tar", OCI_PLAIN},
    {DOCKER_TYPE "image.rootfs.diff.tar.gzip", OCI_GZIP},
    {DOCKER_TYPE "image.rootfs.diff.tar.zstd", OCI_ZSTD},
    {DOCKER_TYPE "image.rootfs.foreign.diff.tar", OCI_PLAIN},
    {DOCKER_TYPE "image.rootfs.foreign.diff.tar.gzip", OCI_GZIP},
};

/* ---- what a document is ---- */

static int no_image(struct err *e, const char *type)
{
    return err_hinted(e, err_set(e, ENOTSUP, "this is not a container image but '%.128s'", type),
                      "charts, signatures and other artifacts of a registry cannot be run");
}

static int schema_1(struct err *e)
{
    int r = err_set(e, ENOTSUP, "the manifest uses the old schema 1, which is not supported");
    err_hint(e, "push the image again with a current tool");
    return r;
}

static int kind_of(const json_t *j, enum oci_kind *ret, struct err *e)
{
    const char *type = NULL;
    const json_t *schema = oci_json_member(j, "schemaVersion");
    bool has_manifests = oci_json_member(j, "manifests");
    bool has_layers = oci_json_member(j, "layers") || oci_json_member(j, "config");
    int r = oci_json_text(j, "mediaType", MEDIA_TYPE_MAX, &type, e);
    if (r < 0)
        return r;
    if (word_among(schema1_types, type) || (json_integer_value(schema) == 1 && !has_manifests))
        return schema_1(e);
    if (schema && json_integer_value(schema) != 2)
        return err_set(e, ENOTSUP, "the document's schemaVersion is not 2");
    if (has_manifests && has_layers)
        return err_set(e, EBADMSG, "the document is a manifest and an index at once");
    if (type && *type && !word_among(manifest_types, type) && !word_among(index_types, type))
        return no_image(e, type);
    bool index = type && *type ? word_among(index_types, type) : has_manifests;
    if (index ? has_layers : has_manifests)
        return err_set(e, EBADMSG, "the document does not match its mediaType");
    if (!has_manifests && !has_layers)
        return err_set(e, EBADMSG, "the document is neither a manifest nor an index");
    *ret = index ? OCI_INDEX : OCI_MANIFEST;
    return 0;
}

int oci_kind(const void *doc, size_t n, enum oci_kind *ret, struct err *e)
{
    e = e ? e : &(struct err){0};
    AUTO_JSON json_t *j = oci_json_load(doc, n, OCI_DOCUMENT_MAX, "manifest", e);
    return j ? kind_of(j, ret, e) : -e->code;
}

static json_t *load_as(const void *doc, size_t n, enum oci_kind kind, const char *what,
                       struct err *e)
{
    AUTO_JSON json_t *j = oci_json_load(doc, n, OCI_DOCUMENT_MAX, what, e);
    enum oci_kind is = OCI_MANIFEST;
    if (!j || kind_of(j, &is, e) < 0)
        return NULL;
    if (is != kind) {
        (void)err_set(e, EBADMSG, "%s was expected, but this is %s",
                      kind == OCI_INDEX ? "an index" : "a manifest",
                      is == OCI_INDEX ? "an index" : "a manifest");
        return NULL;
    }
    return steal_ptr(&j);
}

/* ---- descriptors ---- */

void oci_descriptor_free(struct oci_descriptor *d)
{
    free(d->media_type);
    *d = (struct oci_descriptor){0};
}

/* Media types appear in messages and records: only valid characters are allowed. */
static bool type_is_sane(const char *s)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$&-^_.+/;= ", *s))
            return false;
    return true;
}

static int read_descriptor(const json_t *o, struct oci_descriptor *ret, struct err *e)
{
    const char *digest = NULL, *type = NULL;
    const json_t *size = oci_json_member(o, "size");
    struct oci_descriptor d = {0};
    if (!json_is_object(o))
        return oci_json_bad("descriptor", e);
    int r = oci_json_text(o, "digest", 256, &digest, e);
    if (r == 0)
        r = oci_json_text(o, "mediaType", MEDIA_TYPE_MAX, &type, e);
    if (r < 0)
        return r;
    if (!digest)
        return err_set(e, EBADMSG, "a descriptor has no digest");
    if (type && !type_is_sane(type))
        return oci_json_bad("mediaType", e);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return oci_json_bad("size", e);
    d.size = (uint64_t)json_integer_value(size);
    r = digest_parse(digest, &d.digest, e);
    if (r < 0)
        return r;
    if (!(d.media_type = strdup(type ? type : "")))
        return err_oom(e);
    *ret = d;
    return 0;
}

/* ---- manifests ---- */

void oci_manifest_free(struct oci_manifest *m)
{
    oci_descriptor_free(&m->config);
    for (size_t i = 0; i < m->n_layers; i++)
        oci_descriptor_free(&m->layers[i]);
    free(m->layers);
    *m = (struct oci_manifest){0};
}

static int set_compression(struct oci_descriptor *d, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(layer_types); i++)
        if (strcmp(d->media_type, layer_types[i].type) == 0) {
            d->compression = layer_types[i].compression;
            return 0;
        }
    if (strstr(d->media_type, "+encrypted"))
        return err_set(e, ENOTSUP, "it is encrypted, which is not supported");
    return err_set(e, ENOTSUP, "it is not a file system layer but '%.128s'", d->media_type);
}

static int read_config_descriptor(const json_t *j, struct oci_descriptor *ret, struct err *e)
{
    const json_t *o = oci_json_member(j, "config");
    if (!o)
        return err_set(e, EBADMSG, "the manifest does not name a configuration");
    int r = read_descriptor(o, ret, e);
    if (r < 0)
        return err_wrap(e, r, "the manifest's configuration");
    if (*ret->media_type && !word_among(config_types, ret->media_type))
        return no_image(e, ret->media_type);
    if (ret->size > OCI_CONFIG_MAX)
        return err_set(e, EFBIG, "the image's configuration is larger than %d MiB",
                       OCI_CONFIG_MAX >> 20);
    return 0;
}

static int read_layers(const json_t *j, struct oci_manifest *m, struct err *e)
{
    const json_t *a = oci_json_member(j, "layers");
    size_t n = json_array_size(a);
    if (!json_is_array(a))
        return err_set(e, EBADMSG, "the manifest has no list of layers");
    if (!n)
        return err_set(e, EBADMSG, "the image has no layers");
    if (n > OCI_LAYERS_MAX)
        return err_set(e, E2BIG, "the image has %zu layers; at most %d are supported", n,
                       OCI_LAYERS_MAX);
    if (!(m->layers = calloc(n, sizeof(*m->layers))))
        return err_oom(e);
    for (; m->n_layers < n; m->n_layers++) {
        struct oci_descriptor d;
        int r = read_descriptor(json_array_get(a, m->n_layers), &d, e);
        if (r == 0 && (r = set_compression(&d, e)) < 0)
            oci_descriptor_free(&d);
        if (r < 0)
            return err_wrap(e, r, "layer %zu of the manifest", m->n_layers + 1);
        m->layers[m->n_layers] = d;
    }
    return 0;
}

int oci_manifest_parse(const void *doc, size_t n, struct oci_manifest *ret, struct err *e)
{
    e = e ? e : &(struct err){0};
    AUTO_JSON json_t *j = load_as(doc, n, OCI_MANIFEST, "manifest", e);
    if (!j)
        return -e->code;
    struct oci_manifest m = {0};
    int r = read_config_descriptor(j, &m.config, e);
    if (r == 0)
        r = read_layers(j, &m, e);
    if (r < 0) {
        oci_manifest_free(&m);
        return r;
    }
    *ret = m;
    return 0;
}

/* ---- indexes ---- */

static void free_entry(struct oci_index_entry *x)
{
    oci_descriptor_free(&x->d);
    oci_platform_free(&x->platform);
    free(x->ref_name);
    free(x->image_name);
}

void oci_index_free(struct oci_index *x)
{
    for (size_t i = 0; i < x->n; i++)
        free_entry(&x->entries[i]);
    free(x->entries);
    *x = (struct oci_index){0};
}

/* Whether an entry is an attestation, a signature, or for an unknown platform. */
static bool is_no_image(const json_t *o)
{
    const json_t *platform = json_object_get(o, "platform");
    const json_t *notes = json_object_get(o, "annotations");
    const char *os = json_string_value(json_object_get(platform, "os"));
    const char *type = json_string_value(json_object_get(o, "mediaType"));
    const char *artifact = json_string_value(json_object_get(o, "artifactType"));
    if ((os && strcmp(os, "unknown") == 0) || json_object_get(notes, "vnd.docker.reference.type"))
        return true;
    if (artifact && *artifact && !word_among(config_types, artifact))
        return true;
    return type && *type && !word_among(manifest_types, type) && !word_among(index_types, type);
}

static int read_platform(const json_t *o, struct oci_platform *ret, struct err *e)
{
    const char *os = NULL, *arch = NULL, *variant = NULL;
    char text[OCI_PLATFORM_TEXT];
    if (!o)
        return 0;
    if (!json_is_object(o))
        return oci_json_bad("platform", e);
    int r = oci_json_text(o, "os", 32, &os, e);
    if (r == 0)
        r = oci_json_text(o, "architecture", 32, &arch, e);
    if (r == 0)
        r = oci_json_text(o, "variant", 32, &variant, e);
    if (r < 0)
        return r;
    if (!os || !*os || !arch || !*arch)
        return 0;
    bool more = variant && *variant;
    (void)snprintf(text, sizeof(text), "%s/%s%s%s", os, arch, more ? "/" : "", more ? variant : "");
    return oci_platform_parse(text, ret, e);
}

static int read_note(const json_t *notes, const char *key, char **ret, struct err *e)
{
    const char *s = NULL;
    int r = oci_json_text(notes, key, REF_NAME_MAX, &s, e);
    if (r == 0 && s && *s && !(*ret = strdup(s)))
        r = err_oom(e);
    return r;
}

static int read_entry(const json_t *o, struct oci_index_entry *ret, struct err *e)
{
    struct oci_index_entry x = {0};
    const json_t *notes = oci_json_member(o, "annotations");
    int r = read_descriptor(o, &x.d, e);
    if (r == 0)
        r = read_platform(oci_json_member(o, "platform"), &x.platform, e);
    if (r == 0)
        r = read_note(notes, "org.opencontainers.image.ref.name", &x.ref_name, e);
    if (r == 0)
        r = read_note(notes, "io.containerd.image.name", &x.image_name, e);
    if (r < 0) {
        free_entry(&x);
        return r;
    }
    *ret = x;
    return 0;
}

static int read_entries(const json_t *j, struct oci_index *x, struct err *e)
{
    const json_t *a = oci_json_member(j, "manifests"), *o;
    size_t n = json_array_size(a), i;
    if (!json_is_array(a))
        return err_set(e, EBADMSG, "the index has no list of manifests");
    if (n > OCI_INDEX_MAX)
        return err_set(e, E2BIG, "the index has %zu manifests; at most %d are supported", n,
                       OCI_INDEX_MAX);
    if (!(x->entries = calloc(n + 1, sizeof(*x->entries))))
        return err_oom(e);
    json_array_foreach(a, i, o)
    {
        if (is_no_image(o))
            continue;
        int r = read_entry(o, &x->entries[x->n], e);
        if (r < 0)
            return err_wrap(e, r, "manifest %zu of the index", i + 1);
        x->n++;
    }
    return 0;
}

int oci_index_parse(const void *doc, size_t n, struct oci_index *ret, struct err *e)
{
    e = e ? e : &(struct err){0};
    AUTO_JSON json_t *j = load_as(doc, n, OCI_INDEX, "index", e);
    if (!j)
        return -e->code;
    struct oci_index x = {0};
    int r = read_entries(j, &x, e);
    if (r < 0) {
        oci_index_free(&x);
        return r;
    }
    *ret = x;
    return 0;
}

static int none_matches(const struct oci_index *x, const struct oci_platform *want, struct err *e)
{
    char text[OCI_PLATFORM_TEXT], list[PLATFORMS_SHOWN * OCI_PLATFORM_TEXT] = "";
    size_t len = 0, shown = 0;
    for (size_t i = 0; i < x->n && shown < PLATFORMS_SHOWN; i++) {
        oci_platform_text(&x->entries[i].platform, text);
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", shown++ ? ", " : "", text);
    }
    oci_platform_text(want, text);
    int r = err_set(e, ENOENT, "the image is not made for %s", text);
    if (shown)
        err_hint(e, "it is made for: %s%s", list, x->n > shown ? ", ..." : "");
    else
        err_hint(e, "its index is empty");
    return r;
}

int oci_index_pick(const void *doc, size_t n, const struct oci_platform *want,
                   struct oci_descriptor *ret, struct err *e)
{
    AUTO_OCI_INDEX struct oci_index x = {0};
    int r = oci_index_parse(doc, n, &x, e);
    if (r < 0)
        return r;
    struct oci_index_entry *best = NULL, *silent = NULL;
    unsigned how_well = 0;
    for (size_t i = 0; i < x.n; i++) {
        struct oci_index_entry *at = &x.entries[i];
        unsigned m = oci_platform_match(&at->platform, want);
        if (m > how_well) {
            how_well = m;
            best = at;
        }
        if (!silent && !at->platform.os)
            silent = at;
    }
    if (!best) /* one without a platform may match: its configuration tells */
        best = silent;
    if (!best)
        return none_matches(&x, want, e);
    *ret = best->d;
    best->d = (struct oci_descriptor){0};
    return 0;
}

/* ---- manifest and configuration together ---- */

int oci_check(const struct oci_manifest *m, const struct oci_config *c,
              const struct oci_platform *want, struct err *e)
{
    if (c->n_diff_ids != m->n_layers)
        return err_set(e, EBADMSG,
                       "the image's manifest has %zu layers but its configuration has %zu",
                       m->n_layers, c->n_diff_ids);
    struct oci_platform is = {c->os, c->architecture, c->variant};
    if (!is.os || !is.architecture || oci_platform_match(&is, want))
        return 0;
    char have[OCI_PLATFORM_TEXT], wanted[OCI_PLATFORM_TEXT];
    oci_platform_text(&is, have);
    oci_platform_text(want, wanted);
    return err_set(e, ENOENT, "the image is made for %s, not for %s", have, wanted);
}
