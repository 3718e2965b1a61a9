/* Variables for commands: --env and --env-file. */
#pragma once

#include "cli/core/args.h"

/* clang-format off */
#define ENV_FILE_OPTION \
    {"env-file", 0, "FILE", "Read variables from a file, one KEY=VALUE per line; --env wins", \
     OPT_REPEAT}
/* clang-format on */

/* Appends K=V; K alone is taken from this process's environment. */
int env_option(struct strlist *env, const char *arg, struct err *e);
/* All of both, in the order given, files first. A KEY alone is taken from this process's
 * environment: --env fails if it is not set there, a file omits it. */
int env_options(const struct args *a, struct strlist *env, struct err *e);
