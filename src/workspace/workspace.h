/* Workspaces: named directories for tasks, which outlive sandboxes (store/named.h) and appear in them
 * as /workspace.
 *
 *     $MSB_HOME/workspaces/NAME/workspace.json      when it was made
 *                               data/               what is in it
 *                               data.conflict-DATE/ what a sync found changed (workspace/snapshot.h)
 */
#pragma once

#include "store/store.h"

#define WORKSPACE_GUEST_PATH "/workspace"

struct workspace {
    char name[SPEC_NAME_MAX + 1];
    uint64_t created_ns; /* CLOCK_REALTIME */
};

/* Before a sandbox is made: makes its workspace if it does not exist, and mounts it if it is a
 * share. */
int workspace_settle(const struct store *s, struct sandbox_spec *spec, struct err *e);

/* A new one: EEXIST if there is one. prepare, which may be NULL, is called in its directory before it
 * exists; if that fails, it never does. */
typedef int (*workspace_prepare_fn)(int dirfd, void *ctx, struct err *e);
int workspace_create(const struct store *s, const char *name, workspace_prepare_fn prepare,
                     void *ctx, struct err *e);

/* "workspace not found: NAME" (ENOENT). */
int workspace_open(const struct store *s, const char *name, struct workspace *ret, struct err *e);
/* Sorted by name; free() the list. */
int workspace_list(const struct store *s, struct workspace **ret, size_t *n, struct err *e);
/* EBUSY, naming the sandbox, while one has it. */
int workspace_remove(const struct store *s, const char *name, struct err *e);

/* One process at a time works on the directory at `path`, named or not. */
int workspace_lock(const struct store *s, const char *path, struct name_lock *ret, struct err *e);

/* Where its data is; malloc'd. */
char *workspace_path(const struct store *s, const char *name);
/* Bytes that its data takes on disk. */
uint64_t workspace_used(const struct store *s, const char *name);
/* The directory that holds it and its conflicts. */
int workspace_dir_open(const struct store *s, const char *name, struct err *e);
