/* Files in workspaces: what `msb workspace ls` and `rm` do when given NAME:PATH, and what `status`
 * and `diff` print. */
#pragma once

#include "cli/core/args.h"
#include "store/store.h"
#include "util/buf.h"

#include <jansson.h>

bool workspace_names_file(const char *arg);
/* Lists the files at the first argument; the exit code. */
int workspace_files_verb(const struct args *a);
int workspace_file_remove_verb(const struct store *s, const struct args *a, const char *arg,
                               struct err *e);

/* Paths that differ, for --format json and as text; text is an initialized buffer. */
struct differences {
    const char *key; /* "action": what the first member is called */
    int width;       /* of the text's first column */
    json_t *list;
    struct buf *text;
};
void difference_note(void *differences, const char *what, const char *path);
