/* Loads images from archives: what `docker save`, `podman save`, skopeo and buildx write.
 *
 *     docker-archive    manifest.json names configurations, layers and references
 *     OCI layout        index.json leads to manifests, which lead to blobs; as a tar or a directory
 *
 * An archive that is both (as Docker writes) is read as an OCI layout, which has the digests.
 * Nothing in an archive is trusted: documents are parsed within bounds (oci.h), blobs must match
 * the digests that lead to them, and layers the diff_ids in their configuration. References are set
 * last, when all images of the archive are in the store: a failed load leaves only garbage there,
 * which image_store_collect() removes.
 */
#pragma once

#include <stdint.h>

#include "image/oci/oci.h"
#include "image/oci/reference.h"
#include "image/store/store.h"
#include "util/err.h"

enum { LOAD_IMAGES_MAX = 1024, LOAD_NAMES_MAX = 1024 };

struct load_options {
    const struct reference *tag;         /* instead of the archive's own names; may be NULL */
    const struct oci_platform *platform; /* of an index; NULL: this machine's */
    uint64_t max_expanded;               /* 0: the default; for each layer, and for the archive */
    /* Called for each reference once it is set; may be NULL. */
    void (*loaded)(void *ctx, const struct reference *ref, const struct digest *image);
    void *ctx;
};

/* fd: a file, a pipe, or a directory; stays the caller's. */
int load_images(struct image_store *s, int fd, const struct load_options *opt, struct err *e);
