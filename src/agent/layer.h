/* The writable layer, read as an image layer: what `msb commit` takes.
 *
 * It is the upper directory of the root's overlay, which no path in the guest leads to: PID 1 keeps
 * a descriptor of it for the file service. Overlay's marks become those of image layers (a 0:0
 * device is ".wh.NAME", an opaque directory contains ".wh..wh..opq"). A directory that was moved
 * has its contents in layers below, which only the merged root shows: the layer gets all of it.
 *
 * While it is read, the file system is frozen: writers wait, so that the layer is of one moment. A
 * reader that dies leaves it to PID 1 to thaw.
 */
#pragma once

#include <sys/types.h>

/* fd: a directory on the layer's file system, which has the upper directory in it as "upper". Stays
 * the caller's. */
void layer_init(int fd);
/* The same, or -1. A child that is to read the layer takes it along, and says where it has it. */
int layer_fd(void);
void layer_moved(int fd);
/* Call when a child is gone. */
void layer_child_gone(pid_t pid);
