/* Pulling: from a reference to an image in the store.
 *
 * The manifest and the configuration come first, and with them the layers' diff_ids: layers that
 * are already in the store are not downloaded. The rest are downloaded and converted in parallel.
 * If a pull is interrupted, what it has of a blob is kept in the store, and the next pull resumes
 * it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "image/oci/oci.h"
#include "image/oci/reference.h"
#include "image/store/store.h"
#include "registry/registry.h"
#include "util/err.h"

enum pull_state { PULL_WAITING, PULL_DOWNLOADING, PULL_DONE, PULL_EXISTS };

struct pull_layer {
    struct digest blob;
    uint64_t size;
    _Atomic int state; /* enum pull_state */
    struct layer_progress progress;
    _Atomic uint64_t resumed; /* bytes that an earlier pull left */
};

/* Called in the caller's thread; layers live until pull_image returns. */
struct pull_events {
    void (*layers)(void *ctx, const struct pull_layer *v, size_t n); /* once, when they are known */
    void (*tick)(void *ctx); /* every 100 ms, and after each change of a layer's state */
    void *ctx;
};

struct pull_options {
    struct registry_options registry;    /* only cancel[0] is the caller's */
    const struct oci_platform *platform; /* NULL: this machine's */
    uint64_t max_expanded;               /* 0: the default */
    bool again;                          /* also download layers that exist already */
};

/* On success *ret is the image's digest, and the reference points to it. */
int pull_image(struct image_store *s, const struct reference *ref, const struct pull_options *opt,
               const struct pull_events *ev, struct digest *ret, struct err *e);
