/* Holding sandboxes that run already to a policy that is stricter than when they started. */
#pragma once

#include "policy/rulebook.h"

enum remedy {
    REMEDY_NET,   /* narrow its network policy, and close the flows that this denies */
    REMEDY_PORTS, /* unpublish those of its ports that are too many, the last ones first */
    REMEDY_STOP,  /* what is refused cannot change while it runs */
};
const char *remedy_name(enum remedy r);

/* What would have to be done about a finding that is refused. */
enum remedy remedy_for(const struct finding *f);

/* What is refused of a sandbox as it is stored. */
int sandbox_examine(const struct store *s, const struct rulebook *b, struct sandbox_spec *spec,
                    struct verdict *ret, struct err *e);
/* Does what the findings, if there are any, call for: a stop, or else the changes; and hands its
 * monitor the limits of what it may become. */
int sandbox_conform(const struct store *s, const struct rulebook *b, const char *name,
                    const struct verdict *v, warn_fn warn, struct err *e);
