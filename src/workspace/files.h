/* Files of a workspace, without a sandbox. A guest may be at work there: paths never lead out of it
 * (util/beneath.h), and links that stay within it are followed. Whole trees go in and out by copy/copy.h.
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
    unsigned mode; /* with its type */
    unsigned uid, gid;
    uint64_t size;
    int64_t mtime_ns;
};

struct workspace_files {
    struct workspace_file *v;
    size_t n;
};

void workspace_files_free(struct workspace_files *l); /* harmless twice */

/* What is in the directory at `path`, sorted, or what else is there; all: with everything below. */
int workspace_files_list(int data, const char *path, bool all, struct workspace_files *ret,
                         struct err *e);
/* The content of a file, to its end, as it is then. */
int workspace_file_read(int data, const char *path, int to, struct err *e);
/* Replaces or makes a file, with the directories above it; it has its name once it is complete. */
int workspace_file_write(int data, const char *path, int from, struct err *e);
/* all: a directory, too, with what is in it. */
int workspace_file_remove(int data, const char *path, bool all, struct err *e);
