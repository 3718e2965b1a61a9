/* The guest's own name, and the host's: hostname, /etc/hostname, /etc/hosts. */
#ifndef MSB_AGENT_HOSTS_H
#define MSB_AGENT_HOSTS_H

#include "agent/request.h"
#include "util/buf.h"

#include <stdbool.h>

/* Does this text of /etc/hosts have a line for `name`? */
bool hosts_has(const char *text, const char *name);
/* Appends to *out what `text` lacks: localhost for both protocols, `name`, and the host. The
 * result is `text` with that behind it, or empty when nothing is missing. */
int hosts_complete(const char *text, const char *name, const struct req_net *net, struct buf *out);

/* What fails in it is left as it is. */
void hosts_setup(const struct config *cfg);

#endif
