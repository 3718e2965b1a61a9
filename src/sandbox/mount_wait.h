/* Deals with host directories that do not respond, because a file server (FUSE, NFS) is gone
 * without its mount having noticed. A process that accesses such a mount waits in the kernel and
 * cannot be interrupted. */
#pragma once

#include "spec/spec.h"
#include "util/err.h"

#include <stdint.h>

/* Sets how long later calls wait at most; 0 = forever. */
void mount_wait_limit(uint64_t ms);
/* Accesses the path from another process, and warns if that takes long. -ETIME after the limit,
 * -ENOTCONN if the server is known to be gone. It does not matter whether the path exists. */
int mount_wait(const char *path, warn_fn warn, struct err *e);
/* The same for all host paths that a sandbox uses. */
int mounts_wait(const struct sandbox_spec *spec, warn_fn warn, struct err *e);
