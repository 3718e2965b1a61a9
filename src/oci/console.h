/* The terminal of a container: a pty of the host whose other end goes to the caller, over the socket
 * that it names with --console-socket. The guest has its own pty; this one is raw, and its size
 * and signals are passed on (client/session.h). */
#pragma once

#include "util/err.h"

/* In the process that becomes its session's leader: makes the pty, sends its master end, and has the
 * other one as stdin, stdout, stderr and controlling terminal. rows, cols: 0 = not known. */
int console_take(const char *socket_path, unsigned rows, unsigned cols, struct err *e);
