/* What the parts of the image store share. */
#ifndef MSB_IMAGE_STORE_IMPL_H
#define MSB_IMAGE_STORE_IMPL_H

#include <sys/file.h>

#include "image/record.h"
#include "image/store.h"

/* flock, through interruptions; -errno. */
int store_flock(int fd, int op);

/* Locks under which one thing of a kind ("layer", "disk") is made. */
int store_build_lock(struct cache_build *b, const struct image_store *s, const char *kind,
                     const struct digest *d, struct err *e);

/* A layer's file, open for reading, checked; -ENOENT when it is not there or damaged. */
int store_open_layer(int layers_fd, const struct digest *diff_id, uint64_t *ret_size);

/* Merged metadata: which one these layers have, and making it unless it is there. */
int store_disk_name(const struct image_layer *layers, size_t n, struct digest *ret);
int store_make_disk(struct image_store *s, const struct image_layer *layers, size_t n,
                    const struct digest *disk, uint64_t *ret_size, struct err *e);

/* A document that has the digest it is named by, malloc'd, NUL-terminated; -ENOENT. */
int store_read_doc(int docs_fd, const struct digest *d, size_t max, char **ret, size_t *ret_len);

#endif
