/* The hooks in config.json: host programs that are run at certain points in a container's life,
 * with its state on their stdin. */
#pragma once

#include "oci/runtime.h"
#include "util/err.h"

#include <jansson.h>

/* Runs hooks[kind] in order, until one fails; `state` is not taken. */
int hooks_run(const json_t *hooks, const char *kind, const json_t *state, struct err *e);
/* Runs all of them; those that fail are logged. */
void hooks_run_all(const json_t *hooks, const char *kind, const json_t *state,
                   const struct oci_globals *g);
