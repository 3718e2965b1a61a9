/* Write paths: everything in the guest is read-only but what was listed.
 *
 * It is the guest's own kernel that refuses, so this holds against programs, root included, and not
 * against whoever breaks that kernel. What root could undo it with is taken away for good: the
 * capabilities to mount, to make and read devices, to trace PID 1, to load code into the kernel,
 * and to open files by handle; the nodes of disks; the files of /proc and /sys by which the kernel
 * itself starts programs.
 *
 * PID 1 keeps its rights: it executes nothing by itself, and what it starts cannot get them back.
 */
#ifndef MSB_AGENT_RESTRICT_H
#define MSB_AGENT_RESTRICT_H

#include "agent/request.h"
#include "util/err.h"

/* When everything is mounted. Paths that are not there become directories. */
int restrict_prepare(const struct config *cfg, struct err *err);
/* When nothing of the guest's set-up is left to write, and before the first command. */
int restrict_writes(const struct config *cfg, struct err *err);

#endif
