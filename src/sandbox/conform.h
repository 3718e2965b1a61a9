/* Holds running sandboxes to a policy that has become stricter since they started. */
#pragma once

#include "policy/rulebook.h"

enum remedy {
    REMEDY_NET,   /* narrow its network policy, and close flows that are then denied */
    REMEDY_PORTS, /* unpublish ports beyond the limit, the last ones first */
    REMEDY_STOP,  /* what is refused cannot be changed while it runs */
};
const char *remedy_name(enum remedy r);

/* What has to be done about a refused finding. */
enum remedy remedy_for(const struct finding *f);

/* Finds what the policy refuses about a sandbox as stored. */
int sandbox_examine(const struct store *s, const struct rulebook *b, struct sandbox_spec *spec,
                    struct verdict *ret, struct err *e);
/* Does what any findings call for: a stop, or else the changes; and gives its monitor the limits on
 * later changes. */
int sandbox_conform(const struct store *s, const struct rulebook *b, const char *name,
                    const struct verdict *v, warn_fn warn, struct err *e);
