/* Changing what a sandbox was asked to be. The spec is replaced as a whole, under the name's lock:
 * a reader sees the old one or the new one, and so does the next start. */
#ifndef MSB_SANDBOX_MODIFY_H
#define MSB_SANDBOX_MODIFY_H

#include "store/store.h"

/* Changes the spec that it is given, or fails. */
typedef int (*spec_edit_fn)(struct sandbox_spec *spec, void *ctx, struct err *e);

/* EBUSY for a sandbox that runs, unless `harmless` says that the change concerns nothing that its
 * monitor or its guest were told. A root disk that is larger in the new spec is made larger first;
 * the guest's file system grows into it at the next start. */
int sandbox_modify(const struct store *s, const char *name, bool harmless, spec_edit_fn edit,
                   void *ctx, struct err *e);

/* What sandbox_modify() would refuse of a new spec, whatever the disk looks like. */
int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e);

#endif
