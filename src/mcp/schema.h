/* Arguments of a tool, checked against its inputSchema in tools.json: the part of JSON Schema that
 * is used there. */
#pragma once

#include "util/err.h"

#include <jansson.h>

/* Checks the arguments, removes those that are null, and adds the defaults of missing ones. Unknown
 * arguments are refused. Strings must not contain a NUL, except in the argument `raw` (may be
 * NULL). -EINVAL with a sentence that names the argument. */
int schema_apply(const json_t *schema, json_t *args, const char *raw, struct err *e);
