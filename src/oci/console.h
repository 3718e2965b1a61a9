/* The terminal of a container: a host pty whose other end goes to the caller, over the socket given
 * with --console-socket. The guest has its own pty; this one is raw, and its size and signals are
 * passed on (client/session.h). */
#pragma once

#include "util/err.h"

/* In the process that becomes its session's leader: creates the pty, sends its master end, and
 * makes the other end stdin, stdout, stderr and controlling terminal. rows, cols: 0 = not known. */
int console_take(const char *socket_path, unsigned rows, unsigned cols, struct err *e);
