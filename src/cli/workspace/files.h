/* Files of workspaces: what `msb workspace ls` and `rm` do when they are given NAME:PATH. */
#ifndef MSB_CLI_WORKSPACE_FILES_H
#define MSB_CLI_WORKSPACE_FILES_H

#include "cli/core/args.h"
#include "store/store.h"

bool workspace_names_file(const char *arg);
/* Lists the files at the first argument; the exit code. */
int workspace_files_verb(const struct args *a);
int workspace_file_remove_verb(const struct store *s, const struct args *a, const char *arg,
                               struct err *e);

#endif
