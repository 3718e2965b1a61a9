/* How to stop a sandbox: options of `stop` and `restart`. */
#pragma once

#include "cli/core/args.h"

#include <stdint.h>

/* clang-format off */
#define STOP_OPTS \
    {"force", 'f', NULL, "Kill it at once; unwritten data is lost"}, \
    {"timeout", 't', "TIME", "Time to stop before it is killed (default: 10s)"}
/* clang-format on */

int stop_options(const struct args *a, uint64_t *grace_ms, bool *force, struct err *e);
int stop_check(const struct args *a, struct err *e); /* the same, but only validates them */
