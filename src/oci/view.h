/* What the container's process sees of the host's files: the container's root, and what is mounted
 * in it, as if the container's command itself ran here. Engines enter its mount namespace to copy
 * files (podman cp) and to list its processes (podman top); and a process that reads a guest's
 * output needs nothing else. In a pod, a container gets all its files from here (pod.h). */
#pragma once

#include "spec/spec.h"

/* In a new mount and pid namespace, builds the root: if `whole`, with all mounts, whose mount
 * points are created, and /dev as a tmpfs; else alone. `trees` (one for each of the spec's mounts)
 * gets what is left for view_complete(): the first is a proc, since users may not mount one once
 * they no longer see the host's. Returns a descriptor of the root, for view_enter(). */
int view_build(const struct sandbox_spec *spec, bool whole, int *trees, struct err *e);
/* Mounts the rest wherever the guest has created the mount point by now; anything without one, or
 * that this user may not mount, is left out. */
void view_complete(const struct sandbox_spec *spec, int root, int *trees);
/* Opens a path in the container, O_PATH: its symlinks lead to its own files, never to the
 * host's. */
int view_open(int root, const char *path);
/* A copy of it to serve to a guest, read-only where the container's is; returns a descriptor. */
int view_copy(const struct sandbox_spec *spec, int root, struct err *e);
/* Makes the container's root / from now on. */
int view_enter(int root, struct err *e);
