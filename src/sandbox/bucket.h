/* Workspaces that are kept in a bucket (s3/sync.h): when a sandbox begins and ends with one. */
#ifndef MSB_SANDBOX_BUCKET_H
#define MSB_SANDBOX_BUCKET_H

#include "store/store.h"

/* Before a start. If the bucket cannot be reached, the local side as of the last sync will do,
 * with a warning; if there never was one, this fails. */
int bucket_enter(const struct store *s, const struct sandbox_spec *spec, warn_fn warn,
                 struct err *e);
/* After the end. Nothing is lost if it fails: the local side has everything, and the user is
 * told. */
void bucket_leave(const struct store *s, const struct sandbox_spec *spec, warn_fn warn);

#endif
