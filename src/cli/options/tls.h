/* Options of create and run about secrets that the guest never sees, and about TLS. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"

extern const struct opt_group tls_group;

int tls_options(const struct args *a, struct sandbox_spec *s, struct err *e);
