/* Shared by the parts of the image store. */
#pragma once

#include <sys/file.h>

#include "image/store/record.h"
#include "image/store/store.h"

/* flock, through interruptions; -errno. */
int store_flock(int fd, int op);

/* A layer's file, open for reading, checked; -ENOENT if it is missing or damaged. */
int store_open_layer(int layers_fd, const struct digest *diff_id, uint64_t *ret_size);

/* A document, which must match the digest that names it; malloc'd, NUL-terminated; -ENOENT. */
int store_read_doc(int docs_fd, const struct digest *d, size_t max, char **ret, size_t *ret_len);
