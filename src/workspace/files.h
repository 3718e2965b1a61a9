/* Access to a workspace's files, without a sandbox. A guest may be changing them: paths never lead
 * out of the workspace (util/beneath.h), and links that stay within it are followed. copy/copy.h
 * copies whole trees in and out.
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORKSPACE_FILES_MAX = 1000 * 1000 };

struct workspace_file {
    char *path;    /* from the top of the workspace */
    char *target;  /* of a symbolic link; else NULL */
    unsigned mode; /* including the file type */
    unsigned uid, gid;
    uint64_t size;
    int64_t mtime_ns;
};

struct workspace_files {
    struct workspace_file *v;
    size_t n;
};

void workspace_files_free(struct workspace_files *l); /* may be called twice */

/* Lists the directory at `path`, sorted, or whatever else is there; all: recursively. */
int workspace_files_list(int data, const char *path, bool all, struct workspace_files *ret,
                         struct err *e);
/* Copies a file's content, up to its current end, to `to`. */
int workspace_file_read(int data, const char *path, int to, struct err *e);
/* Creates or replaces a file, and any missing parent directories; it gets its name once it is
 * complete. */
int workspace_file_write(int data, const char *path, int from, struct err *e);
/* all: also directories, with their contents. */
int workspace_file_remove(int data, const char *path, bool all, struct err *e);
