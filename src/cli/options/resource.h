/* Options whose value is a number of CPUs or an amount of memory, of `create` and of `modify`. */
#pragma once

#include "cli/core/args.h"

#include <stdint.h>

/* Each returns 1 if the option was given, 0 if not, or -EINVAL. */
int cpus_option(const struct args *a, const char *name, double *ret, struct err *e);
int memory_option(const struct args *a, const char *name, uint64_t *ret_mib, struct err *e);
