/* What programs in the guest may not do: write outside some paths, use capabilities, gain
 * privileges.
 *
 * Write paths: everything in the guest is read-only except the paths listed; with a read-only root,
 * except mounts. The guest's own kernel enforces this, so it holds against programs, root included,
 * but not against an exploit of that kernel. Whatever root could use to undo this is removed for
 * good: the capabilities to mount, to make and read devices, to trace PID 1, to load code into the
 * kernel, and to open files by handle; the nodes of disks; the files of /proc and /sys that make
 * the kernel start programs.
 *
 * Capabilities leave the bounding set, and no_new_privs is set, once, for everything that is
 * executed later. A child that serves files executes nothing: see spawn_limit_caps().
 *
 * PID 1 keeps its capabilities: it executes nothing by itself, and its children cannot regain them.
 */
#pragma once

#include "agent/request.h"
#include "util/err.h"

/* Call when everything is mounted. Missing paths become directories; settings and the process limit
 * apply at once. */
int restrict_prepare(const struct config *cfg, struct err *e);
/* Call when the guest is completely set up, before the first command. */
int restrict_guest(const struct config *cfg, struct err *e);
