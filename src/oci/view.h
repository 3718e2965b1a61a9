/* What the container's process sees of the host's files: the container's root, and what is mounted in
 * it, as if the container's command itself ran here. Engines enter its mount namespace to copy files
 * (podman cp) and to list its processes (podman top); and a process that reads what a guest says
 * needs nothing else. A container of a pod has all its files from here (pod.h). */
#pragma once

#include "spec/spec.h"

/* In a new mount and pid namespace: the root, whole with all mounts, whose places are made, /dev being a
 * tmpfs; or alone. `trees` (one for each of the spec's mounts) is what is left for view_complete(): the
 * first is a proc, since users may not make one once they no longer see the host's. A descriptor of the
 * root, for view_enter(). */
int view_build(const struct sandbox_spec *spec, bool whole, int *trees, struct err *e);
/* Mounts the rest where there is a place by now, which the guest has made; what has none, or may not be
 * mounted by this user, is left out. */
void view_complete(const struct sandbox_spec *spec, int root, int *trees);
/* A path in the container, O_PATH: its links lead to its own files, never to the host's. */
int view_open(int root, const char *path);
/* A copy of it to serve to a guest, read-only where the container has it so; a descriptor. */
int view_copy(const struct sandbox_spec *spec, int root, struct err *e);
/* / is the container's from now on. */
int view_enter(int root, struct err *e);
