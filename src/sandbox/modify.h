/* Changes of a sandbox's spec. It is replaced as a whole, under the name's lock: a reader, and the next
 * start, see the old one or the new one. */
#pragma once

#include "spec/diff.h"
#include "store/store.h"

typedef int (*spec_edit_fn)(struct sandbox_spec *spec, void *ctx, struct err *e);

/* What happens to a sandbox that runs. */
enum modify_how {
    MODIFY_NOW,  /* it has the change at once; EBUSY where it cannot (modify_obstacle) */
    MODIFY_NEXT, /* it goes on as it is; its next start has the change */
};

/* A root disk that is larger in the new spec is enlarged first; the guest's file system grows into it
 * at the next start. */
int sandbox_modify(const struct store *s, const char *name, enum modify_how how, spec_edit_fn edit,
                   void *ctx, struct err *e);

/* Lets every running sandbox that `secret` is bound in use its new value. Those that cannot are warned
 * about. */
void sandboxes_refresh_secret(const struct store *s, const char *secret, warn_fn warn);

/* NULL, or why the sandbox, if it runs, cannot have the changes at once: "it was told when it started".
 * Labels, bound secrets and CPUs it can have. */
const char *modify_obstacle(const struct store *s, const struct sandbox *sb,
                            const struct spec_changes *l, const struct sandbox_spec *now);

/* Whether sandbox_modify() would take the new spec, whatever the disk looks like. */
int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e);
