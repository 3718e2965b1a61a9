/* Options about what programs in the guest may do: of create, run and modify. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"

extern const struct opt_group security_group; /* can be modified, too */
extern const struct opt_group guest_group;

/* Applies those that were given: the profile first, then the others, in Docker's order (drops, then
 * adds). */
int security_options(const struct args *a, struct sandbox_spec *s, struct err *e);
