/* The ports that a sandbox publishes, in run/ports.json while it runs: with the numbers chosen for
 * port 0. Like all of run/ it is read as hostile input. */
#pragma once

#include "store/store.h"

/* In the monitor: what is published now; n = 0 removes the file. run_fd: the sandbox's run/. */
int ports_save(int run_fd, const struct spec_port *p, size_t n);
/* The ports that lead to the guest or, if it is not running, that would. *ret is malloc'd. */
int sandbox_ports(const struct store *s, const struct sandbox *sb, struct spec_port **ret,
                  size_t *n);
