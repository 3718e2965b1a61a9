/* Saves images to archives that other tools read: docker-archive, or an OCI layout in a tar.
 *
 * Layers are generated from their EROFS files, uncompressed, so digests differ from the registry's:
 * diff_ids, configuration and manifest are written to match. A layer's content is the same. Each
 * layer is generated twice, once for its digest, which comes first in an archive, and once into the
 * archive: this needs no temporary files, and no more memory than one layer's tree. The same images
 * give the same bytes, and so does saving what was loaded from such an archive.
 */
#pragma once

#include <stddef.h>

#include "image/oci/reference.h"
#include "image/store/store.h"
#include "util/err.h"

enum save_format { SAVE_DOCKER, SAVE_OCI };

enum { SAVE_IMAGES_MAX = 256 };

int save_images(struct image_store *s, const struct reference *refs, size_t n,
                enum save_format format, int out_fd, struct err *e);
