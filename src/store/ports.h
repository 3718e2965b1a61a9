/* The ports that a sandbox publishes, in run/ports.json for as long as it runs: it has the numbers
 * that were picked for port 0. Like all of run/ it is read as hostile input. */
#ifndef MSB_STORE_PORTS_H
#define MSB_STORE_PORTS_H

#include "store/store.h"

/* In the monitor: what is published now; with n = 0 the file goes. run_fd: the sandbox's run/. */
int ports_save(int run_fd, const struct spec_port *p, size_t n);
/* What leads to the guest now, or, of a sandbox that does not run, would. *ret is malloc'd. */
int sandbox_ports(const struct store *s, const struct sandbox *sb, struct spec_port **ret,
                  size_t *n);

#endif
