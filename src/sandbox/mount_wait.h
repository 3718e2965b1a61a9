/* A directory of the host that does not answer: a file server (FUSE, NFS) that is gone without its
 * mount having noticed. A process that accesses such a mount waits in the kernel and cannot be interrupted. */
#pragma once

#include "spec/spec.h"
#include "util/err.h"

#include <stdint.h>

/* How long to wait at most, in every call that follows; 0 = forever. */
void mount_wait_limit(uint64_t ms);
/* Asks about the path from another process, and says so when that takes long. -ETIME after the
 * limit, -ENOTCONN if the server is known to be gone. Whether there is anything at the path is not its
 * business. */
int mount_wait(const char *path, warn_fn warn, struct err *e);
/* The same for every host path that a sandbox uses. */
int mounts_wait(const struct sandbox_spec *spec, warn_fn warn, struct err *e);
