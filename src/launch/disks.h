/* Disks that a sandbox mounts: disk volumes, and image files on the host.
 *
 * Only the guest's kernel mounts them; the host never does, and does not look inside. A disk has
 * one writer or any number of readers: the launcher takes an flock through the descriptor that the
 * monitor then holds, so the lock is released when the monitor ends, however it ends.
 */
#pragma once

#include "store/store.h"

/* Opens and locks them, in the order of the spec's mounts; -EBUSY for one that is in use. fds has
 * room for SPEC_SHARES_MAX; on failure *n of them are open. */
int disks_open(const struct store *s, const struct sandbox_spec *spec, int *fds, size_t *n,
               struct err *e);
/* The same for a root disk that is one of the user's files; returns its descriptor. */
int disks_open_root(const struct store *s, const struct sandbox_spec *spec, struct err *e);
