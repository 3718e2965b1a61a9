/* The disks of a sandbox, as devices: the tools it starts with, its image, its writable layer, and
 * those that it mounts, in this order, by which the guest knows them (put_disk in control.c). */
#ifndef MSB_MONITOR_BLK_DEVICES_H
#define MSB_MONITOR_BLK_DEVICES_H

#include "engine/engine.h"
#include "monitor/monitor.h"

/* Adds them to ep->devices, to be served on `loop`, whose thread may block. */
int blk_devices(struct engine_params *ep, const struct monitor_params *p, struct loop *loop,
                struct err *e);

#endif
