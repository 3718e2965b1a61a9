/* Changes of a sandbox's spec. It is replaced as a whole, under the name's lock: a reader, and the next
 * start, see the old one or the new one. */
#ifndef MSB_SANDBOX_MODIFY_H
#define MSB_SANDBOX_MODIFY_H

#include "store/store.h"

typedef int (*spec_edit_fn)(struct sandbox_spec *spec, void *ctx, struct err *e);

/* EBUSY while the sandbox runs, unless the change is `harmless`: nothing that its monitor or guest
 * was told, but for bound secrets, which its interceptor is then told. A root disk that is larger in the new spec is enlarged first; the guest's file system
 * grows into it at the next start. */
int sandbox_modify(const struct store *s, const char *name, bool harmless, spec_edit_fn edit,
                   void *ctx, struct err *e);

/* Lets every running sandbox that `secret` is bound in use its new value. Those that cannot are warned
 * about. */
void sandboxes_refresh_secret(const struct store *s, const char *secret, warn_fn warn);

/* Whether sandbox_modify() would take the new spec, whatever the disk looks like. */
int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e);

#endif
