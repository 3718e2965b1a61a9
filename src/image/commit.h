/* Makes an image from another one and a layer on top of it: what a sandbox has written.
 *
 * The layer's bytes are hostile, and are converted like a pulled layer's. Its diff_id is the digest
 * of the tar that its file turns into again (layer/to_tar.h), so that saving and pushing it give
 * the same bytes.
 */
#pragma once

#include "image/oci/reference.h"
#include "image/store/store.h"
#include "util/err.h"
#include "util/stream.h"
#include "util/strlist.h"

struct commit {
    const char *parent;             /* "sha256:...": the image below, of any kind */
    const char *name;               /* of the sandbox, for messages and the history */
    const char *author, *message;   /* may be NULL */
    const struct strlist *changes;  /* of the configuration (oci/change.h) */
    const struct reference *target; /* NULL: the image gets no name */
};

/* Checks that the changes can be made; call it before anything else is done. */
int image_commit_check(const struct commit *c, struct err *e);
/* layer: a tar, read to its end. On success *ret is the image's digest. */
int image_commit(struct image_store *s, const struct commit *c, struct stream *layer,
                 struct digest *ret, struct err *e);
