#include "image/oci/document.h"

#include "image/oci/json.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void oci_document_free(struct oci_document *d)
{
    free(d->text);
    *d = (struct oci_document){0};
}

int oci_document_set(struct oci_document *d, const json_t *j, struct err *e)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!text)
        return err_oom(e);
    oci_document_free(d);
    *d = (struct oci_document){.text = text, .len = strlen(text)};
    d->digest = digest_of(d->text, d->len);
    return 0;
}

int oci_document_copy(struct oci_document *d, const char *text, size_t len, struct err *e)
{
    char *copy = strndup(text, len);
    if (!copy)
        return err_oom(e);
    oci_document_free(d);
    *d = (struct oci_document){.text = copy, .len = len, .digest = digest_of(text, len)};
    return 0;
}

int oci_documents_load(const char *config, size_t config_len, const char *manifest,
                       size_t manifest_len, json_t **ret_config, json_t **ret_manifest,
                       struct err *e)
{
    AUTO_JSON json_t *c =
        oci_json_load(config, config_len, OCI_CONFIG_MAX, "image's configuration", e);
    AUTO_JSON json_t *m =
        c ? oci_json_load(manifest, manifest_len, OCI_DOCUMENT_MAX, "manifest", e) : NULL;
    if (!m)
        return -EBADMSG;
    *ret_config = steal_ptr(&c);
    *ret_manifest = steal_ptr(&m);
    return 0;
}

json_t *oci_descriptor_json(const char *type, const struct digest *d, uint64_t size)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    return json_pack("{s:s, s:s, s:I}", "mediaType", type, "digest", text, "size",
                     (json_int_t)size);
}

int oci_document_config(struct oci_document *ret, json_t *config, const struct oci_layer *layers,
                        size_t n, struct err *e)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < n; i++) {
        char text[DIGEST_TEXT_SIZE];
        digest_text(&layers[i].diff_id, text);
        (void)json_array_append_new(ids, json_string(text));
    }
    json_t *rootfs = json_pack("{s:s, s:o}", "type", "layers", "diff_ids", ids);
    if (json_object_set_new(config, "rootfs", rootfs) < 0)
        return err_oom(e);
    return oci_document_set(ret, config, e);
}

int oci_document_manifest(struct oci_document *ret, const struct oci_document *config,
                          const struct oci_layer *layers, size_t n, json_t *annotations,
                          struct err *e)
{
    static const char *const types[] = {[OCI_PLAIN] = OCI_TYPE "layer.v1.tar",
                                        [OCI_GZIP] = OCI_TYPE "layer.v1.tar+gzip",
                                        [OCI_ZSTD] = OCI_TYPE "layer.v1.tar+zstd"};
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, oci_descriptor_json(types[layers[i].compression],
                                                              &layers[i].blob, layers[i].size));
    AUTO_JSON json_t *j = json_pack(
        "{s:i, s:s, s:o, s:o}", "schemaVersion", 2, "mediaType", OCI_TYPE_MANIFEST, "config",
        oci_descriptor_json(OCI_TYPE "config.v1+json", &config->digest, config->len), "layers",
        list);
    if (j && json_is_object(annotations) && json_object_set(j, "annotations", annotations) < 0)
        return err_oom(e);
    return oci_document_set(ret, j, e);
}
