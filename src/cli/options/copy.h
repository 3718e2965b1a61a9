/* Parses --copy, --copy-file, --copy-dir, --mkdir and --rm: changes to a new sandbox's files. */
#pragma once

#include "spec/spec.h"

/* arg: SRC:DST for a copy, else a path; `option` is the name of the option. */
int copy_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e);

/* Fits create_options.prepare; ctx is the spec. */
int copy_prepare(void *ctx, int sock, struct err *e);
