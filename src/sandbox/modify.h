/* Changes to a sandbox's spec, which is replaced as a whole, under the name's lock: a reader, and
 * the next start, see the old one or the new one. */
#pragma once

#include "spec/diff.h"
#include "store/store.h"

typedef int (*spec_edit_fn)(struct sandbox_spec *spec, void *ctx, struct err *e);

/* What happens if the sandbox is running. */
enum modify_how {
    MODIFY_NOW,  /* the change takes effect at once; EBUSY if it cannot (modify_obstacle) */
    MODIFY_NEXT, /* the change takes effect at the next start */
};

/* If the new spec has a larger root disk, that is enlarged first; the guest's file system grows
 * into it at the next start. */
int sandbox_modify(const struct store *s, const char *name, enum modify_how how, spec_edit_fn edit,
                   void *ctx, struct err *e);

/* Gives its new value to every running sandbox to which `secret` is bound. Warns about those that
 * cannot use it. */
void sandboxes_refresh_secret(const struct store *s, const char *secret, warn_fn warn);

/* NULL, or why the changes cannot take effect at once in a running sandbox: "it was told when it
 * started". Labels, bound secrets and CPUs can be changed. */
const char *modify_obstacle(const struct store *s, const struct sandbox *sb,
                            const struct spec_changes *l, const struct sandbox_spec *now);

/* Checks that sandbox_modify() would accept the new spec, regardless of the disk. */
int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e);
