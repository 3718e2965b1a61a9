/* Workspaces that were copied into a sandbox, and how they come back (workspace/snapshot.h). */
#pragma once

#include "store/store.h"

/* As sandbox_sync(), for an open sandbox under the lock of its name. */
int sync_workspace(const struct store *s, struct sandbox *sb, uint64_t max, warn_fn warn,
                   struct err *e);
