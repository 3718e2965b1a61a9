/* Published ports, on the host's side. They are bound with the rights of the user who creates or
 * starts the sandbox, before it runs, so that a busy port is reported at once. The sockets go to
 * the monitor, which records them (store/ports.h). */
#pragma once

#include "store/store.h"

/* Binds (and, for TCP, listens); *got is `want` with the port that was bound. If a sandbox in `s`
 * (may be NULL) has the port, the error message names it. */
int publish_bind(const struct store *s, const struct spec_port *want, int *ret_fd,
                 struct spec_port *got, struct err *e);
