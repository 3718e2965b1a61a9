/* The names of guest and host: hostname, /etc/hostname, /etc/hosts. */
#pragma once

#include "agent/request.h"
#include "util/buf.h"

#include <stdbool.h>

/* Whether this /etc/hosts has a line for `name`. */
bool hosts_has(const char *text, const char *name);
/* Sets *out to `text` with the missing lines appended: localhost for both protocols, `name`, and
 * the host. *out stays empty if nothing is missing. */
int hosts_complete(const char *text, const char *name, const struct req_net *net, struct buf *out);

/* Ignores failures. */
void hosts_setup(const struct config *cfg);
