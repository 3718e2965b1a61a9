/* Workspaces: named directories for tasks, which outlive sandboxes and appear as /workspace.
 *
 *     $MSB_HOME/workspaces/NAME/workspace.json    when it was made
 *                               data/             what is in it
 *                               data.conflict-N/  what a sync found changed: see
 * workspace/snapshot.h
 *
 * A workspace is there once its workspace.json is. One that a sandbox has cannot be removed; who is
 * about to use one holds what volume_hold() takes, and so does, alone, who removes one.
 */
#ifndef MSB_WORKSPACE_WORKSPACE_H
#define MSB_WORKSPACE_WORKSPACE_H

#include "store/store.h"

#define WORKSPACE_GUEST_PATH "/workspace"

struct workspace {
    char name[SPEC_NAME_MAX + 1];
    uint64_t created_ns; /* CLOCK_REALTIME */
};

/* Before a sandbox is made: its workspace is there, and mounted if it is a share. */
int workspace_settle(const struct store *s, struct sandbox_spec *spec, struct err *e);

/* "workspace not found: NAME" (ENOENT). */
int workspace_open(const struct store *s, const char *name, struct workspace *ret, struct err *e);
/* All of them, by name; free() the list. */
int workspace_list(const struct store *s, struct workspace **ret, size_t *n, struct err *e);
/* EBUSY, naming the sandbox, while one has it. */
int workspace_remove(const struct store *s, const char *name, struct err *e);

/* Where its data is; malloc'd. */
char *workspace_path(const struct store *s, const char *name);
/* Bytes that its data takes on disk. */
uint64_t workspace_used(const struct store *s, const char *name);
/* The directory that holds it, and what else belongs to it. */
int workspace_dir_open(const struct store *s, const char *name, struct err *e);

#endif
