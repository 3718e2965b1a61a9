/* The image store: everything that was pulled or loaded, content-addressed.
 *
 *     layers/<diff_id>.<version>.erofs    one file per layer, shared by all images that have it
 *     disks/<chain>.<version>.erofs       merged metadata, one per combination of layers (disk.h)
 *     images/<manifest digest>.json       an image: its documents and its layers
 *     refs/<hash of the reference>.json   which image a reference means
 *     partial/<blob digest>               what an interrupted download has got so far
 *     gc.lock                             held shared by whoever adds or uses, exclusively by
 *                                         whoever removes
 *
 * It lives in the same directory as the cache of directories and tars (cache.h) and follows its
 * rules: a name appears by rename when its content is on disk, and never changes. Whatever no
 * reference and no sandbox leads to is garbage, and any later removal takes it away, so a crash at
 * any moment leaves at most garbage.
 */
#ifndef MSB_IMAGE_STORE_H
#define MSB_IMAGE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/cache.h"
#include "image/layer.h"
#include "image/oci.h"
#include "image/reference.h"
#include "util/err.h"
#include "util/stream.h"
#include "util/strlist.h"

struct image_store {
    struct cache cache;
    int layers_fd, disks_fd, refs_fd, partial_fd;
    int gc_fd; /* holds gc.lock, shared, while the store is open */
};

int image_store_open(struct image_store *s, const char *cache_dir, struct err *e);
void image_store_close(struct image_store *s);

struct image_layer {
    struct digest diff_id, blob;
    uint64_t blob_size, erofs_size;
    char *media_type; /* NULL: not known */
};

/* --- adding --------------------------------------------------------------------------------- */

bool image_store_has_layer(const struct image_store *s, const struct digest *diff_id,
                           uint64_t *ret_erofs_size);

/* Makes a layer, unless it is there by the time its lock is ours: two pulls of one layer share the
 * work. open() is called only when the bytes are needed; the stream is closed here. want->diff_id
 * must be set. Safe to call from several threads. */
typedef int (*layer_open_fn)(void *ctx, struct stream **ret, struct err *e);
int image_store_add_layer(struct image_store *s, const struct layer_want *want, layer_open_fn open,
                          void *ctx, struct layer_progress *progress, struct image_layer *ret,
                          struct err *e);

/* Records an image whose layers are all there, and makes its disk. `manifest` and `config` are the
 * documents as they came. Idempotent. */
int image_store_add_image(struct image_store *s, const void *manifest, size_t manifest_len,
                          const void *config, size_t config_len, const struct image_layer *layers,
                          size_t n_layers, struct digest *ret, struct err *e);

/* From now on the reference (its tag, or its digest where it has no tag) means that image. */
int image_store_tag(struct image_store *s, const struct reference *ref, const struct digest *image,
                    struct err *e);

/* --- looking -------------------------------------------------------------------------------- */

struct image_record {
    char *reference; /* full spelling; NULL for an image that lost its last one */
    struct digest digest;
    char *manifest, *config; /* the documents, NUL-terminated */
    size_t manifest_len, config_len;
    struct oci_config parsed;
    struct image_layer *layers;
    size_t n_layers;
    uint64_t stored_ns; /* CLOCK_REALTIME, when it was pulled or loaded */
};
void image_record_free(struct image_record *r);

/* -ENOENT (e set) when the reference means nothing here. With a digest, only that image will do. */
int image_store_find(struct image_store *s, const struct reference *ref, struct image_record *ret,
                     struct err *e);

/* Every reference, sorted by name. */
struct image_list {
    struct image_record *v;
    size_t n;
};
int image_store_list(struct image_store *s, struct image_list *ret, struct err *e);
void image_list_free(struct image_list *l);

/* --- removing ------------------------------------------------------------------------------- */

/* Forgets the reference; the image stays until it is collected. */
int image_store_untag(struct image_store *s, const struct reference *ref, struct err *e);

/* Removes whatever neither a reference nor `used` (digests "sha256:...", of all sandboxes) leads
 * to, of directories' and tars' images too. Does nothing while others add or use images, unless
 * `wait`. The store must have been opened here and not be in use by other threads. */
int image_store_collect(struct image_store *s, const struct strlist *used, bool wait,
                        uint64_t *ret_freed, struct err *e);

/* --- using ---------------------------------------------------------------------------------- */

/* The files of an image's disk, in order, open for reading. For images of all kinds. */
struct image_disk {
    int fd[OCI_LAYERS_MAX + 1];
    uint64_t length[OCI_LAYERS_MAX + 1];
    size_t n;
};
int image_disk_open(const char *cache_dir, const char *digest, struct image_disk *ret,
                    struct err *e);
void image_disk_close(struct image_disk *d);

#endif
