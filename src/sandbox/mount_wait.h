/* A directory of the host that does not answer: a file server (FUSE, NFS) that is gone without its
 * mount having noticed. Whoever asks such a mount waits in the kernel, deaf to its own signals. */
#ifndef MSB_SANDBOX_MOUNT_WAIT_H
#define MSB_SANDBOX_MOUNT_WAIT_H

#include "spec/spec.h"
#include "util/err.h"

#include <stdint.h>

/* How long to wait at most, in every call that follows; 0 = for ever. */
void mount_wait_limit(uint64_t ms);
/* Asks about the path from another process, and says so when that takes long. -ETIME after the
 * limit, -ENOTCONN if the server is known to be gone. Whether there is anything at the path is not its
 * business. */
int mount_wait(const char *path, warn_fn warn, struct err *e);
/* The same for all that a sandbox has of the host. */
int mounts_wait(const struct sandbox_spec *spec, warn_fn warn, struct err *e);

#endif
