/* The writable layer, read as an image layer: what `msb commit` takes.
 *
 * It is the upper directory of the root's overlay, to which no path in the guest leads: PID 1 keeps
 * a descriptor of it for the file service. Overlay's marks become those of image layers (a 0:0
 * device is ".wh.NAME", an opaque directory contains ".wh..wh..opq"). If a directory was moved, its
 * contents are in lower layers, and only the merged root shows them: the layer gets all of it.
 *
 * While it is read, the file system is frozen: writers wait, so that the layer is a consistent
 * snapshot. If a reader dies, PID 1 thaws it.
 */
#pragma once

#include <sys/types.h>

/* fd: a directory on the layer's file system that contains the upper directory as "upper". Stays
 * the caller's. */
void layer_init(int fd);
/* That descriptor, or -1. A child that will read the layer keeps it, and passes its new number to
 * layer_moved(). */
int layer_fd(void);
void layer_moved(int fd);
/* Call when a child has ended. */
void layer_child_gone(pid_t pid);
