/* What a client may use of the host: how many sandboxes, with how much memory and how many CPUs, and
 * from which registries images come. The user who starts the server decides. */
#pragma once

#include "mcp/server.h"
#include "util/err.h"

/* What the server's sandboxes take, running or not, since a command restarts a stopped one. Those
 * for which `skip` returns true are not counted. */
int limits_used(const struct mcp_config *c, bool (*skip)(void *ctx, const char *name), void *ctx,
                struct mcp_share *ret, struct err *e);
/* Whether there is room for one more; -EDQUOT with a sentence that names the limit. */
int limits_fit(const struct mcp_config *c, const struct mcp_share *used,
               const struct mcp_share *more, struct err *e);

/* Whether an image that the client named may be pulled. If not, it may still be in the cache. */
bool limits_may_pull(const struct mcp_config *c, const char *image);
/* HOST[:PORT], as in a reference. */
int limits_check_registry(const char *text, struct err *e);
