/* --workspace and --persist-home: what of a task is kept, as people write it. */
#ifndef MSB_CLI_WORKSPACE_OPTS_H
#define MSB_CLI_WORKSPACE_OPTS_H

#include "cli/args.h"
#include "spec/spec.h"

/* What of it cannot be meant, whatever the values are: an error of usage. */
int workspace_options_check(const struct args *a, struct err *e);
/* named: the user chose the sandbox's name. */
int workspace_options(const struct args *a, struct sandbox_spec *s, bool named, struct err *e);

#endif
