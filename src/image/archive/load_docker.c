/* docker-archives: manifest.json is a list of images.
 *
 *     [{"Config": "abc.json", "RepoTags": ["alpine:3"], "Layers": ["def/layer.tar", ...]}, ...]
 *
 * They have no registry-style manifest, so one is generated: it names the configuration, and the
 * layers as in the archive. The same archive always gives the same manifest.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image/archive/load_internal.h"
#include "image/oci/json.h"
#include "util/cleanup.h"

#define DOCKER_TYPE "application/vnd.docker."

enum { HASH_SIZE = 256 << 10 };

static const char *text_of(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && *s && json_string_length(v) < TAR_NAME_MAX ? s : NULL;
}

static int read_names(const struct load *l, const json_t *o, struct strlist *ret, struct err *e)
{
    const json_t *a = oci_json_member(o, "RepoTags"), *v;
    size_t i;
    if (l->opt->tag || !a)
        return 0;
    if (!json_is_array(a) || json_array_size(a) > LOAD_NAMES_MAX)
        return oci_json_bad("RepoTags", e);
    json_array_foreach(a, i, v)
    {
        const char *s = text_of(v);
        if (!s)
            return oci_json_bad("RepoTags", e);
        if (strlist_add(ret, s) < 0)
            return err_oom(e);
    }
    return 0;
}

/* ---- layers ---- */

static int hash_member(const struct bundle *b, const char *name, struct digest *ret, struct err *e)
{
    struct stream *s = NULL;
    struct hasher h;
    AUTO_FREE uint8_t *buf = malloc(HASH_SIZE);
    int r = bundle_stream(b, name, &s, e);
    if (r < 0)
        return r;
    hasher_init(&h);
    if (!buf) {
        stream_close(s);
        return err_oom(e);
    }
    ssize_t n;
    while ((n = stream_read(s, buf, HASH_SIZE, e)) > 0)
        hasher_update(&h, buf, (size_t)n);
    stream_close(s);
    *ret = hasher_finish(&h);
    return (int)n;
}

/* Determines a layer's kind of blob by its first bytes. */
static int layer_type(const struct bundle *b, const char *name, const char **ret, struct err *e)
{
    uint8_t p[4] = {0};
    size_t have = 0;
    struct stream *s;
    int r = bundle_stream(b, name, &s, e);
    if (r < 0)
        return r;
    ssize_t n = 1;
    while (n > 0 && have < sizeof(p)) {
        n = stream_read(s, p + have, sizeof(p) - have, e);
        have += n > 0 ? (size_t)n : 0;
    }
    stream_close(s);
    *ret = DOCKER_TYPE "image.rootfs.diff.tar";
    if (p[0] == 0x1f && p[1] == 0x8b)
        *ret = DOCKER_TYPE "image.rootfs.diff.tar.gzip";
    else if (memcmp(p, "\x28\xb5\x2f\xfd", sizeof(p)) == 0)
        *ret = DOCKER_TYPE "image.rootfs.diff.tar.zstd";
    return n < 0 ? (int)n : 0;
}

static json_t *descriptor(const char *type, uint64_t size, const struct digest *d)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    return json_pack("{s:s, s:I, s:s}", "mediaType", type, "size", (json_int_t)size, "digest",
                     text);
}

/* A layer's descriptor. If uncompressed, its digest is the diff_id, which is checked when the layer
 * is read; if compressed, it is computed here. */
static int describe_layer(const struct load *l, const char *name, const struct digest *diff_id,
                          json_t **ret, struct err *e)
{
    const char *type;
    struct digest d = *diff_id;
    uint64_t size;
    if (!bundle_has(&l->bundle, name, &size))
        return err_set(e, ENOENT, "the archive has no layer '%.256s'", name);
    int r = layer_type(&l->bundle, name, &type, e);
    if (r == 0 && strcmp(type, DOCKER_TYPE "image.rootfs.diff.tar") != 0)
        r = hash_member(&l->bundle, name, &d, e);
    if (r == 0 && !(*ret = descriptor(type, size, &d)))
        r = err_oom(e);
    return r;
}

static int check_layers(const json_t *a, const struct load_source *src, struct err *e)
{
    size_t n = json_array_size(a);
    if (!json_is_array(a))
        return oci_json_bad("Layers", e);
    if (n > OCI_LAYERS_MAX)
        return err_set(e, E2BIG, "the image has %zu layers; at most %d are supported", n,
                       OCI_LAYERS_MAX);
    if (n != src->c.n_diff_ids)
        return err_set(e, EBADMSG, "%s lists %zu layers, but the image's configuration lists %zu",
                       LOAD_MANIFEST, n, src->c.n_diff_ids);
    return 0;
}

static int make_manifest(const struct load *l, const json_t *names, struct load_source *src,
                         struct err *e)
{
    AUTO_JSON json_t *layers = json_array();
    const json_t *v;
    size_t i;
    int r = check_layers(names, src, e);
    json_array_foreach(names, i, v)
    {
        json_t *one = NULL;
        const char *name = text_of(v);
        if (r == 0)
            r = name ? describe_layer(l, name, &src->c.diff_ids[i], &one, e)
                     : oci_json_bad("Layers", e);
        if (r < 0)
            return r;
        (void)json_array_append_new(layers, one);
    }
    if (r < 0)
        return r;
    struct digest d = digest_of(src->config, src->config_len);
    AUTO_JSON json_t *m = json_pack(
        "{s:i, s:s, s:o, s:O}", "schemaVersion", 2, "mediaType",
        DOCKER_TYPE "distribution.manifest.v2+json", "config",
        descriptor(DOCKER_TYPE "container.image.v1+json", src->config_len, &d), "layers", layers);
    src->manifest = m ? json_dumps(m, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!src->manifest)
        return err_oom(e);
    src->manifest_len = strlen(src->manifest);
    return oci_manifest_parse(src->manifest, src->manifest_len, &src->m, e);
}

static int name_layers(const json_t *names, struct load_source *src, struct err *e)
{
    src->layers = calloc(src->m.n_layers + 1, sizeof(char *));
    for (size_t i = 0; src->layers && i < src->m.n_layers; i++)
        if (!(src->layers[i] = strdup(json_string_value(json_array_get(names, i)))))
            return err_oom(e);
    return src->layers ? 0 : err_oom(e);
}

/* ---- images ---- */

static int read_image(struct load *l, const json_t *o, struct load_source *src, struct err *e)
{
    const char *config = text_of(json_object_get(o, "Config"));
    const json_t *layers = oci_json_member(o, "Layers");
    if (!config)
        return oci_json_bad("Config", e);
    int r = bundle_read(&l->bundle, config, OCI_CONFIG_MAX, &src->config, &src->config_len, e);
    if (r == 0)
        r = oci_config_parse(src->config, src->config_len, &src->c, e);
    if (r == 0)
        r = make_manifest(l, layers, src, e);
    if (r == 0)
        r = name_layers(layers, src, e);
    if (r == 0)
        r = read_names(l, o, &src->names, e);
    if (r == 0)
        r = load_check_names(l, 1, src->names.n, e);
    return r < 0 ? r : load_add(l, src, e);
}

int load_docker(struct load *l, struct err *e)
{
    AUTO_FREE char *doc = NULL;
    size_t len, i;
    int r = bundle_read(&l->bundle, LOAD_MANIFEST, OCI_DOCUMENT_MAX, &doc, &len, e);
    if (r < 0)
        return r;
    AUTO_JSON json_t *j = oci_json_load_list(doc, len, OCI_DOCUMENT_MAX, LOAD_MANIFEST, e);
    if (!j)
        return -EBADMSG;
    size_t n = json_array_size(j);
    if (n == 0 || n > LOAD_IMAGES_MAX)
        return err_set(e, EBADMSG, "%s lists %zu images; 1 to %d are supported", LOAD_MANIFEST, n,
                       LOAD_IMAGES_MAX);
    r = load_check_names(l, n, true, e);
    if (r < 0)
        return r;
    const json_t *o;
    json_array_foreach(j, i, o)
    {
        AUTO_LOAD_SOURCE struct load_source src = {0};
        r = read_image(l, o, &src, e);
        if (r < 0)
            return r;
    }
    return 0;
}
