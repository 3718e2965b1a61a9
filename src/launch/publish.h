/* Published ports on the host's side: bound by whoever creates or starts a sandbox, with that
 * user's rights and before anything else happens, so that a busy port is his error message and not
 * the guest's silence. The descriptors go to the monitor, which keeps the record (store/ports.h). */
#ifndef MSB_LAUNCH_PUBLISH_H
#define MSB_LAUNCH_PUBLISH_H

#include "store/store.h"

/* Binds (and, for TCP, listens); *got is `want` with the port that it became. `s`, which may be
 * NULL, is where to look for a sandbox that has the port, for the error message. */
int publish_bind(const struct store *s, const struct spec_port *want, int *ret_fd,
                 struct spec_port *got, struct err *e);

#endif
