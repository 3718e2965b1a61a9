/* Documents of images that we create ourselves: saved, committed and pushed ones. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/oci/oci.h"
#include "util/err.h"
#include "util/json.h"

#define OCI_TYPE "application/vnd.oci.image."
#define OCI_TYPE_MANIFEST OCI_TYPE "manifest.v1+json"
#define OCI_TYPE_INDEX OCI_TYPE "index.v1+json"

struct oci_document {
    char *text;
    size_t len;
    struct digest digest;
};
void oci_document_free(struct oci_document *d); /* may be called twice, or on zeros */
#define AUTO_OCI_DOCUMENT CLEANUP(oci_document_free)
/* The same JSON gives the same text. NULL: out of memory. */
int oci_document_set(struct oci_document *d, const json_t *j, struct err *e);
/* A document, unchanged. */
int oci_document_copy(struct oci_document *d, const char *text, size_t len, struct err *e);

/* An image's documents, as JSON. Nothing is returned unless both are valid. */
int oci_documents_load(const char *config, size_t config_len, const char *manifest,
                       size_t manifest_len, json_t **ret_config, json_t **ret_manifest,
                       struct err *e);

/* A layer as the documents describe it. */
struct oci_layer {
    struct digest diff_id, blob;
    uint64_t size; /* of the blob */
    enum oci_compression compression;
};

json_t *oci_descriptor_json(const char *type, const struct digest *d, uint64_t size);
/* Makes the configuration: `config` (changed in place), with these layers. */
int oci_document_config(struct oci_document *ret, json_t *config, const struct oci_layer *layers,
                        size_t n, struct err *e);
/* annotations may be NULL. */
int oci_document_manifest(struct oci_document *ret, const struct oci_document *config,
                          const struct oci_layer *layers, size_t n, json_t *annotations,
                          struct err *e);
