/* Workspaces that are kept in a bucket (s3/sync.h): before and after they are used. A name that
 * is NULL, or of a workspace that is not in a bucket, is nothing to do. */
#pragma once

#include "s3/sync.h"
#include "store/store.h"

/* s3_workspace_sync(), if the host's policy allows the bucket. */
int bucket_sync(const struct store *s, const char *name, struct s3_sync *how, bool *remote,
                struct err *e);

/* A new workspace in a bucket that the policy allows, once it is known that the bucket can be used. */
int bucket_create(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                  struct err *e);
/* Before a sandbox is made whose workspace was given as a URL: makes that, if it does not exist. */
int bucket_settle(const struct store *s, const struct spec_workspace *w, warn_fn warn,
                  struct err *e);
/* Before a start, or a look at its files. If the bucket
 * cannot be reached, the local side as of the last sync will do, with a warning; if there never was
 * one, or it lacks what is wanted now, this fails. */
int bucket_enter(const struct store *s, const char *name, struct s3_sync *how, struct err *e);
/* Is it in one? */
bool bucket_has(const struct store *s, const char *name);
/* Before its files are read on the host: nothing happens unless contents were left for later. */
int bucket_complete(const struct store *s, const char *name, warn_fn warn, struct err *e);
/* After the end. Nothing is lost if it fails: the local side has everything, and the user is
 * told. */
void bucket_leave(const struct store *s, const char *name, warn_fn warn);
