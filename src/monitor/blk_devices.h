/* The disks of a sandbox, as devices: the tools that it starts with, its image, its writable layer,
 * and the disks that it mounts. The guest knows them by this order (put_disk in control.c). */
#pragma once

#include "monitor/params.h"

/* Adds them to ep->devices; `loop` serves them, and its thread may block. */
int blk_devices(struct engine_params *ep, const struct monitor_params *p, struct loop *loop,
                struct err *e);
