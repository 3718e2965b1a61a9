/* Workspaces: named directories for tasks, which outlive sandboxes (store/named.h) and appear in
 * them as /workspace.
 *
 *     $MSB_HOME/workspaces/NAME/workspace.json      when it was created
 *                               data/               its contents
 *                               data.conflict-DATE/ conflicts of a sync (workspace/snapshot.h)
 */
#pragma once

#include "store/store.h"

#define WORKSPACE_GUEST_PATH "/workspace"

struct workspace {
    char name[SPEC_NAME_MAX + 1];
    uint64_t created_ns; /* CLOCK_REALTIME */
};

/* Before a sandbox is created: creates its workspace if it does not exist, and mounts it if it is a
 * share. */
int workspace_settle(const struct store *s, struct sandbox_spec *spec, struct err *e);

/* Creates one; EEXIST if it exists. prepare, which may be NULL, is called in its directory before
 * it becomes visible; if that fails, it never does. */
typedef int (*workspace_prepare_fn)(int dirfd, void *ctx, struct err *e);
int workspace_create(const struct store *s, const char *name, workspace_prepare_fn prepare,
                     void *ctx, struct err *e);

/* "workspace not found: NAME" (ENOENT). */
int workspace_open(const struct store *s, const char *name, struct workspace *ret, struct err *e);
/* Sorted by name; free() the list. */
int workspace_list(const struct store *s, struct workspace **ret, size_t *n, struct err *e);
/* EBUSY, naming the sandbox, while one uses it. */
int workspace_remove(const struct store *s, const char *name, struct err *e);

/* Locks the directory at `path`, named or not: one process at a time works on it. */
int workspace_lock(const struct store *s, const char *path, struct name_lock *ret, struct err *e);

/* Where its data is; malloc'd. */
char *workspace_path(const struct store *s, const char *name);
/* The disk space that its data takes, in bytes. */
uint64_t workspace_used(const struct store *s, const char *name);
/* The directory that contains it and its conflicts. */
int workspace_dir_open(const struct store *s, const char *name, struct err *e);
