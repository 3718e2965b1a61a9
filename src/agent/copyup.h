/* The content of a directory, copied into another one: files, directories, links and FIFOs, with owner, mode
 * and time. Sockets and device nodes are left out: their kernel is the host's. Symbolic links are not followed.
 * Hard links become files of their own, holes are filled, and extended attributes are lost. */
#pragma once

/* 0 or -errno; -EBUSY: something was replaced at the same time. */
int copyup(int from, int to);
