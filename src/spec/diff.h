/* How two specs of a sandbox differ, in what can be changed after its creation: what `modify`
 * changes, and what a running sandbox will only get at its next start. */
#pragma once

#include "spec/spec.h"

struct spec_change {
    const char *field;    /* "max_cpus" */
    char *name;           /* of a secret; NULL: not a secret */
    char *before, *after; /* NULL = nothing */
};

struct spec_changes {
    struct spec_change *v;
    size_t n;
};

/* *ret is empty before; free it after a failure (-ENOMEM), too. */
int spec_diff(const struct sandbox_spec *old, const struct sandbox_spec *now,
              struct spec_changes *ret);
void spec_changes_free(struct spec_changes *c); /* may be called twice */
#define AUTO_CHANGES CLEANUP(spec_changes_free)

const char *spec_change_kind(const struct spec_change *c); /* added, updated, removed */
json_t *spec_change_json(const struct spec_change *c, const char *disposition);
