/* What to do before and after using a workspace that is kept in a bucket (s3/sync.h). These do
 * nothing if the name is NULL, or the workspace is not in a bucket. */
#pragma once

#include "s3/sync.h"
#include "store/store.h"

/* s3_workspace_sync(), if the host's policy allows the bucket. */
int bucket_sync(const struct store *s, const char *name, struct s3_sync *how, bool *remote,
                struct err *e);

/* Creates a workspace in a bucket that the policy allows, after checking that the bucket can be
 * used. */
int bucket_create(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                  struct err *e);
/* Before creating a sandbox whose workspace is given as a URL: creates the workspace if it does not
 * exist. */
int bucket_settle(const struct store *s, const struct spec_workspace *w, warn_fn warn,
                  struct err *e);
/* Before a start, or before reading its files. If the bucket cannot be reached, the local side as
 * of the last sync is used, with a warning; if there never was one, or it lacks what is needed now,
 * this fails. */
int bucket_enter(const struct store *s, const char *name, struct s3_sync *how, struct err *e);
/* Whether it is in a bucket. */
bool bucket_has(const struct store *s, const char *name);
/* Before its files are read on the host: does nothing unless contents were left for later. */
int bucket_complete(const struct store *s, const char *name, warn_fn warn, struct err *e);
/* After the sandbox has ended. Nothing is lost if this fails: the local side has everything, and
 * the user is told. */
void bucket_leave(const struct store *s, const char *name, warn_fn warn);
