/* The guest's own name: hostname, /etc/hostname, /etc/hosts, the loopback interface. */
#ifndef MSB_AGENT_HOSTS_H
#define MSB_AGENT_HOSTS_H

#include "util/buf.h"

#include <stdbool.h>

/* Does this text of /etc/hosts have a line for `name`? */
bool hosts_has(const char *text, const char *name);
/* Appends to *out what `text` lacks: localhost for both protocols, and `name`. The result is
 * `text` with that behind it, or empty when nothing is missing. */
int hosts_complete(const char *text, const char *name, struct buf *out);

/* What fails in these is left as it is. */
void hosts_setup(const char *name);
void loopback_up(void);

#endif
