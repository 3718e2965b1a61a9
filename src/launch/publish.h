/* Published ports on the host's side: bound by whoever creates or starts a sandbox, with that
 * user's rights and before anything else happens, so that a busy port is his error message and not
 * the guest's silence. The descriptors go to the monitor.
 *
 * What was bound is in run/ports.json for as long as the sandbox runs: it has the numbers that
 * were picked for port 0. Like all of run/ it is read as hostile input. */
#ifndef MSB_LAUNCH_PUBLISH_H
#define MSB_LAUNCH_PUBLISH_H

#include "store/store.h"

/* Binds (and, for TCP, listens); *got is `want` with the port that it became. `s`, which may be
 * NULL, is where to look for a sandbox that has the port, for the error message. */
int publish_bind(const struct store *s, const struct spec_port *want, int *ret_fd,
                 struct spec_port *got, struct err *e);

/* In the monitor: what is published now; with n = 0 the file goes. run_fd: the sandbox's run/. */
int ports_save(int run_fd, const struct spec_port *p, size_t n);
/* What leads to the guest now, or, of a sandbox that does not run, would. *ret is malloc'd. */
int sandbox_ports(const struct store *s, const struct sandbox *sb, struct spec_port **ret,
                  size_t *n);

#endif
