/* The content of a directory, copied into another one: files, directories, links and FIFOs, with owner, mode
 * and time. Sockets and device nodes are left out: their kernel is the host's. Links are not followed. */
#pragma once

/* 0 or -errno. */
int copyup(int from, int to);
