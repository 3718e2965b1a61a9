/* Turns a sandbox's writable layer into an image.
 *
 * Nothing on the host reads the guest's file system: its agent sends the layer as a tar
 * (agent/layer.h), and a stopped sandbox is started for that, as for exec.
 */
#pragma once

#include "image/commit.h"
#include "store/store.h"
#include "util/err.h"

/* Fills in c->parent. */
int sandbox_commit(const struct store *s, struct image_store *images, struct commit *c,
                   warn_fn warn, struct digest *ret, struct err *e);
