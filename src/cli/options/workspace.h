/* Parses --workspace and --persist-home. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"

/* Options that cannot be combined, whatever their values: a usage error. */
int workspace_options_check(const struct args *a, struct err *e);
/* named: the user chose the sandbox's name. */
int workspace_options(const struct args *a, struct sandbox_spec *s, bool named, struct err *e);
