/* Everything that is printed from the command table: help, the tree, completion scripts. */
#pragma once

#include "cli/core/cmd.h"
#include "util/buf.h"

/* --help, or (all) --help-all; lines are wrapped at `columns`. */
void help_root(bool all, struct buf *out, unsigned columns);
void help_cmd(const struct cmd *c, bool all, struct buf *out, unsigned columns);
/* c = NULL: the whole tree. */
void help_tree(const struct cmd *c, struct buf *out);

/* The heading of a group of verbs. */
const char *cmd_group_name(enum cmd_group g);

/* For `msb completion SHELL`; false: there is none for that shell. */
bool completion_script(const char *shell, struct buf *out);
