/* Pushing: from an image in the store to a registry.
 *
 * Blobs come first, then the manifest, so that a name in the registry never leads to something
 * incomplete. A blob that the registry already has is not sent again, and one that it has in
 * another repository is mounted from there; so an interrupted push continues with the blob it was
 * at.
 *
 * The store keeps layers in its own form, not the blobs that were pulled. If the registry has the
 * original blob, it is used; else the layer is regenerated (layer/pack.h), with another digest, and
 * the documents are adapted. The content is the same.
 */
#pragma once

#include "image/oci/reference.h"
#include "image/store/store.h"
#include "registry/pull.h"
#include "registry/registry.h"
#include "util/err.h"

/* ref: with a tag. Events are those of a pull (PULL_DOWNLOADING here means uploading), all in the
 * caller's thread. On success *ret is the image's digest in the registry. */
int push_image(struct image_store *s, const struct image_record *rec, const struct reference *ref,
               const struct registry_options *opt, const struct pull_events *ev, struct digest *ret,
               struct err *e);
