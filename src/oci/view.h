/* What the container's process sees of the host's files: the container's root, and what is mounted in
 * it, as if the container's command itself ran here. Engines enter its mount namespace to copy files
 * (podman cp) and to list its processes (podman top); and a process that reads what a guest says
 * needs nothing else. */
#ifndef MSB_OCI_VIEW_H
#define MSB_OCI_VIEW_H

#include "spec/spec.h"

/* In a new mount and pid namespace. Mounts whose place does not exist, or that this user may not make,
 * are left out. Afterwards / is the container's. */
int view_enter(const struct sandbox_spec *spec, struct err *e);

#endif
