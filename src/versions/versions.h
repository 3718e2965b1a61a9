/* Versions of a workspace: its state at a checkpoint, which can be listed, compared and restored.
 *
 *     $MSB_HOME/workspaces/NAME/versions/N.json        when, why, how much
 *                                        N.tree        its files (s3/tree.h)
 *                                        objects/AB/.. contents, by their SHA-256
 *                                        new/          work in progress; removed by the next one
 *
 * A content is stored once, however many versions and files have it; files that have not been
 * touched since the last version are not even read. Objects and tree are on disk before N.json,
 * which makes the version exist, is written: a crash leaves a version complete or absent.
 *
 * A restore first makes a version of the current state, so that nothing is lost. Then it replaces
 * one file after another, by renames, so that sandboxes that use the workspace can keep running; an
 * interrupted restore is finished by repeating it. Files that .msbignore names are in no version,
 * and are left alone.
 *
 * All of these are called under workspace_lock(), with the workspace's directory.
 */
#pragma once

#include "s3/tree.h"
#include "store/store.h"

enum { VERSIONS_MAX = 1000, VERSION_MESSAGE_MAX = 1000 };

struct version {
    unsigned id; /* from 1 */
    uint64_t created_ns, files, bytes;
    char message[VERSION_MESSAGE_MAX + 1];
};

/* The newest first; free() the list. */
int versions_list(int dir, struct version **ret, size_t *n, struct err *e);
/* The files in a version; id 0 = as they are now. */
int version_tree(int dir, unsigned id, warn_fn warn, struct s3_tree *ret, struct err *e);

/* *ret is the new one; if *made is false, it is the last one, since nothing has changed. max: bytes
 * on disk that all versions may take. */
int version_make(int dir, const char *message, uint64_t max, warn_fn warn, struct version *ret,
                 bool *made, struct err *e);
int version_restore(int dir, unsigned id, uint64_t max, warn_fn warn, struct err *e);
/* Removes all but the newest `keep`, and contents that no version needs. */
int versions_prune(int dir, size_t keep, size_t *removed, struct err *e);

/* Calls fn for each path that differs: "added", "changed" or "removed". */
typedef void (*version_differs_fn)(void *ctx, const char *what, const char *path);
void version_compare(const struct s3_tree *old, const struct s3_tree *now, version_differs_fn fn,
                     void *ctx);
