/* Write paths: everything in the guest is read-only except the paths listed.
 *
 * The guest's own kernel enforces this, so it holds against programs, root included, but not
 * against an exploit of that kernel. What root could use to undo it is removed for good: the
 * capabilities to mount, to make and read devices, to trace PID 1, to load code into the kernel,
 * and to open files by handle; the nodes of disks; the files of /proc and /sys that make the kernel
 * start programs.
 *
 * PID 1 keeps its capabilities: it executes nothing by itself, and its children cannot regain them.
 */
#ifndef MSB_AGENT_RESTRICT_H
#define MSB_AGENT_RESTRICT_H

#include "agent/request.h"
#include "util/err.h"

/* Call when everything is mounted. Missing paths become directories. */
int restrict_prepare(const struct config *cfg, struct err *e);
/* Call when the set-up of the guest is complete, before the first command. */
int restrict_writes(const struct config *cfg, struct err *e);

#endif
