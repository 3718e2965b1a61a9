/* Published ports, on the host's side. They are bound with the rights of the user that creates or
 * starts the sandbox, and before it runs, so that a busy port is an error message at once. The
 * sockets go to the monitor, which records them (store/ports.h). */
#pragma once

#include "store/store.h"

/* Binds (and, for TCP, listens); *got is `want` with the port that was bound. The error message
 * names the sandbox in `s` (may be NULL) that has the port. */
int publish_bind(const struct store *s, const struct spec_port *want, int *ret_fd,
                 struct spec_port *got, struct err *e);
