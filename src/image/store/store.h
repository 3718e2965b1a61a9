/* The image store: everything that was pulled or loaded, content-addressed.
 *
 *     layers/<diff_id>.<version>.erofs    one file per layer, shared by all images that have it
 *     disks/<chain>.<version>.erofs       merged metadata, one per combination of layers (disk.h)
 *     docs/<digest>                       manifests and configurations, as they came
 *     images/<manifest digest>.json       an image: which layers, disk and documents it has
 *     refs/<hash of the reference>.json   which image a reference means
 *     partial/<blob digest>               what an interrupted download has received
 *     gc.lock                             held shared to add or use, exclusively to remove
 *
 * It lives in the same directory as the cache of directories and tars (cache.h) and follows its
 * rules.
 *
 * Invariants:
 * 1. A name appears by rename once its content is on disk. Content under a digest never changes;
 *    only refs/ are replaced.
 * 2. A reference is written after its image, an image after all its parts; removal goes the
 *    other way. So a crash leaves at most garbage. Anything that no reference and no sandbox
 *    leads to is garbage, which any later removal collects.
 * 3. Nothing is removed except under the exclusive lock. A process that is about to use something
 *    (a pull that skips a layer, a sandbox whose spec is not on disk yet) holds the shared one.
 *    Exception: a disk that may be wrong and cannot be made again.
 * 4. A damaged record, document or file counts as missing: the next pull recreates it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/layer/layer.h"
#include "image/oci/oci.h"
#include "image/oci/reference.h"
#include "image/store/cache.h"
#include "util/err.h"
#include "util/stream.h"
#include "util/strlist.h"

struct image_store {
    struct cache cache;
    int layers_fd, disks_fd, docs_fd, refs_fd, partial_fd;
    int gc_fd; /* holds gc.lock, shared, while the store is open */
};

#define IMAGE_STORE_INIT                                                                    \
    {                                                                                       \
        .cache = CACHE_INIT, .layers_fd = -1, .disks_fd = -1, .docs_fd = -1, .refs_fd = -1, \
        .partial_fd = -1, .gc_fd = -1                                                       \
    }

/* Creates what is missing, and waits for a removal in progress. */
int image_store_open(struct image_store *s, const char *cache_dir, struct err *e);
void image_store_close(struct image_store *s); /* may be called twice */
#define AUTO_IMAGE_STORE CLEANUP(image_store_close)

struct image_layer {
    struct digest diff_id, blob;
    uint64_t blob_size, erofs_size;
    char *media_type; /* NULL: not known */
};

/* --- adding --------------------------------------------------------------------------------- */

bool image_store_has_layer(const struct image_store *s, const struct digest *diff_id,
                           uint64_t *ret_erofs_size);

/* Makes a layer, unless it exists by the time we have its lock: two pulls of one layer share the
 * work. open() is called only when the bytes are needed; it closes the stream. want->diff_id must
 * be set. *ret describes the blob: completely, or, where the layer existed, as `want` does. Safe to
 * call from several threads. */
typedef int (*layer_open_fn)(void *ctx, struct stream **ret, struct err *e);
int image_store_add_layer(struct image_store *s, const struct layer_want *want, layer_open_fn open,
                          void *ctx, struct layer_progress *progress, struct image_layer *ret,
                          struct err *e);

/* Makes a layer from a tar that no document describes: its diff_id and its blob are those of the
 * tar that its file turns back into (layer/to_tar.h). want's digests must be NULL. */
int image_store_make_layer(struct image_store *s, const struct layer_want *want, struct stream *in,
                           struct image_layer *ret, struct err *e);

/* Records an image whose layers all exist, and makes its disk. `manifest` and `config` are the
 * unchanged documents; only the diff_ids in `layers` (lowest first) matter, the rest is what the
 * manifest says. Idempotent. */
int image_store_add_image(struct image_store *s, const void *manifest, size_t manifest_len,
                          const void *config, size_t config_len, const struct image_layer *layers,
                          size_t n_layers, struct digest *ret, struct err *e);

/* Makes the disks of this image, and of all that share a layer with it, again: its layers were made
 * again, perhaps because they were wrong. Images for which that fails count as missing; at a
 * shortage (of space, memory or descriptors) it stops, and the disks that are left stay as they
 * were. */
int image_store_remake_disks(struct image_store *s, const struct digest *image, struct err *e);

/* Makes the reference mean that image. If it has a digest, its tag does not matter. pulled: the
 * registry said so, not a local user. */
int image_store_tag(struct image_store *s, const struct reference *ref, const struct digest *image,
                    bool pulled, struct err *e);

/* --- looking -------------------------------------------------------------------------------- */

struct image_record {
    char *reference; /* full spelling; NULL if the image has lost its last one */
    struct digest digest;
    bool pulled;             /* the reference means it according to its registry */
    char *manifest, *config; /* the documents, NUL-terminated */
    size_t manifest_len, config_len;
    struct oci_config parsed;
    struct image_layer *layers; /* lowest first */
    size_t n_layers;
    uint64_t disk_size; /* of the merged metadata */
    uint64_t stored_ns; /* CLOCK_REALTIME, when it was pulled or loaded */
};
void image_record_free(struct image_record *r);
#define AUTO_IMAGE_RECORD CLEANUP(image_record_free)

/* -ENOENT (e set) if the reference is unknown. With a digest, finds only that image (or, if it is
 * an index's, the one that a pull by it selected). */
int image_store_find(struct image_store *s, const struct reference *ref, struct image_record *ret,
                     struct err *e);
/* The same for an image's own digest, whether a reference leads to it or not. */
int image_store_get(struct image_store *s, const struct digest *image, struct image_record *ret,
                    struct err *e);

/* Every reference, sorted by name. */
struct image_list {
    struct image_record *v;
    size_t n;
};
int image_store_list(struct image_store *s, struct image_list *ret, struct err *e);
void image_list_free(struct image_list *l);

/* --- removing ------------------------------------------------------------------------------- */

/* Removes the reference; the image stays until it is collected. -ENOENT (e set). */
int image_store_untag(struct image_store *s, const struct reference *ref, struct err *e);

/* `used` is called under the exclusive lock, and returns the digests ("sha256:...") of sandboxes'
 * images. */
struct image_collect {
    int (*used)(void *ctx, struct strlist *ret, struct err *e);
    void *ctx;
    bool unused; /* also remove references to images that no sandbox uses, unused images of
                  * directories and tars, and the remains of interrupted downloads */
    bool wait;   /* for others to finish, up to ten seconds */
};
struct image_collected {
    uint64_t bytes;              /* freed on disk */
    size_t images, refs, layers; /* removed */
};
/* Removes garbage. -EBUSY (e set), with nothing done, while others add or use images. The store
 * must not be in use by other threads. */
int image_store_collect(struct image_store *s, const struct image_collect *opt,
                        struct image_collected *ret, struct err *e);

/* --- using ---------------------------------------------------------------------------------- */

/* The files of an image's disk, in order, open for reading. For images of all kinds. */
struct image_disk {
    int fd[OCI_LAYERS_MAX + 1];
    uint64_t length[OCI_LAYERS_MAX + 1];
    size_t n;
};
/* digest: "sha256:...". -ENOENT (e set) if it, or a part of it, is missing. */
int image_disk_open(const char *cache_dir, const char *digest, struct image_disk *ret,
                    struct err *e);
void image_disk_close(struct image_disk *d); /* may be called twice */
