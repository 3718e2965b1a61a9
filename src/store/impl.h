/* Shared by the store's files: one sandbox's files, opened by a path below `at`, so that a list
 * need not open every directory. */
#pragma once

#include "store/store.h"

/* Like monitor_lock_holder(), for the lock file at `path`. */
pid_t lock_holder_at(int at, const char *path);
int state_load_at(int at, const char *path, struct sandbox_state *st);
int spec_load_at(int at, const char *path, struct sandbox_spec *spec, struct err *e);

/* The lock of a sandbox's name, which has been checked. create: 0 or O_CREAT; op: of flock(). */
int name_lock_try(const struct store *s, const char *name, int create, int op,
                  struct name_lock *ret);
