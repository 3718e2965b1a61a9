/* Syncs workspaces that were copied into a sandbox back to the host (workspace/snapshot.h). */
#pragma once

#include "store/store.h"

/* Like sandbox_sync(), for an open sandbox whose name is locked. */
int sync_workspace(const struct store *s, struct sandbox *sb, uint64_t max, warn_fn warn,
                   struct err *e);
/* For a sandbox that is removed without a sync: warns if it has changes that were not synced. */
void sync_warn_lost(const struct store *s, const char *name, warn_fn warn);
