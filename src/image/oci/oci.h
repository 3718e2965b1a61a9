/* What registries and archives say about an image: indexes, manifests, configurations.
 *
 * OCI and Docker schema 2 documents are two variants of the same thing. All are untrusted JSON:
 * sizes, counts and strings are bounded here, and the results are safe to use. Unknown fields are
 * ignored, as the formats demand.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "image/oci/image_config.h"
#include "util/cleanup.h"
#include "util/err.h"

enum {
    OCI_DOCUMENT_MAX = 4 << 20, /* bytes of a manifest or index: as much as registries accept */
    OCI_CONFIG_MAX = 8 << 20,   /* bytes of a configuration */
    OCI_LAYERS_MAX = 128,       /* Docker's own limit is 127 */
    OCI_INDEX_MAX = 1024,       /* manifests in one index */
    OCI_LIST_MAX = 4096,        /* entries of Env, Cmd, Labels, ... */
    OCI_STRING_MAX = 128 << 10, /* bytes of one of them: the kernel's limit for an argument */
};

enum oci_compression { OCI_PLAIN, OCI_GZIP, OCI_ZSTD };

struct oci_descriptor {
    struct digest digest;
    uint64_t size;
    enum oci_compression compression; /* of a layer, by media type; converters check the bytes */
    char *media_type;
};
void oci_descriptor_free(struct oci_descriptor *d);

struct oci_manifest {
    struct oci_descriptor config;
    struct oci_descriptor *layers; /* lowest first; at least one */
    size_t n_layers;
};

/* "linux/amd64", "linux/arm64/v8". Parts may be NULL. */
struct oci_platform {
    char *os, *architecture, *variant;
};
int oci_platform_parse(const char *text, struct oci_platform *ret, struct err *e);
/* This machine's platform; parts are NULL if memory runs out. */
void oci_platform_host(struct oci_platform *ret);
void oci_platform_free(struct oci_platform *p);
#define AUTO_OCI_PLATFORM CLEANUP(oci_platform_free)
/* "linux/arm64/v8"; "unknown" for parts that are NULL. */
enum { OCI_PLATFORM_TEXT = 128 };
void oci_platform_text(const struct oci_platform *p, char text[OCI_PLATFORM_TEXT]);
/* How well `have` suits a request for `want`: 0 not at all; the highest is best. A later variant of
 * an architecture runs what was built for earlier ones. */
unsigned oci_platform_match(const struct oci_platform *have, const struct oci_platform *want);

enum oci_kind { OCI_MANIFEST, OCI_INDEX };
/* Determines what a document is, by its mediaType or, where that is missing, by its fields. Schema
 * 1, artifacts other than images, and ambiguous documents are refused by name. */
int oci_kind(const void *doc, size_t n, enum oci_kind *ret, struct err *e);

int oci_manifest_parse(const void *doc, size_t n, struct oci_manifest *ret, struct err *e);
void oci_manifest_free(struct oci_manifest *m);
#define AUTO_OCI_MANIFEST CLEANUP(oci_manifest_free)

/* An index: manifests and nested indexes. Entries known not to be images (signatures, attestations)
 * are omitted. */
struct oci_index_entry {
    struct oci_descriptor d;
    struct oci_platform platform; /* all NULL if the index does not say */
    char *ref_name;               /* org.opencontainers.image.ref.name; NULL without one */
    char *image_name;             /* io.containerd.image.name: a full reference; NULL without one */
};
struct oci_index {
    struct oci_index_entry *entries;
    size_t n;
};
int oci_index_parse(const void *doc, size_t n, struct oci_index *ret, struct err *e);
void oci_index_free(struct oci_index *x);
#define AUTO_OCI_INDEX CLEANUP(oci_index_free)

/* Picks the manifest for a platform, or an index that may have it: oci_kind() of the document tells
 * which. The error lists the available platforms. */
int oci_index_pick(const void *doc, size_t n, const struct oci_platform *want,
                   struct oci_descriptor *ret, struct err *e);

/* An image's configuration document. */
struct oci_config {
    struct image_config run; /* Env, Entrypoint, Cmd, ... */
    struct digest *diff_ids;
    size_t n_diff_ids;
    char *os, *architecture, *variant; /* NULL if not given */
    char *created;                     /* RFC 3339, or NULL */
};
int oci_config_parse(const void *doc, size_t n, struct oci_config *ret, struct err *e);
void oci_config_free(struct oci_config *c);
#define AUTO_OCI_CONFIG CLEANUP(oci_config_free)

/* Checks that a manifest and the configuration that it names belong together (as many diff_ids as
 * layers), and that the image is for the wanted platform. */
int oci_check(const struct oci_manifest *m, const struct oci_config *c,
              const struct oci_platform *want, struct err *e);
