/* Settings of a sandbox from YAML files: --conf and its siblings.
 *
 *     image: python:3.12
 *     memory: 1G
 *     env: {DEBUG: "1"}
 *     net-rule: [allow@pypi.org]
 *     read-only: true
 *
 * Keys are the names of options, and each becomes what the option would have been on the command
 * line, so nothing can be set in a way that the command line does not have. What the
 * command line itself has comes later or, where there can be only one, replaces it. Of several files
 * the last wins in the same way.
 */
#pragma once

#include "cli/core/args.h"

/* For the table: the options that name files. */
extern const struct opt_group conf_group;

/* Replaces them by what is in their files. Strings are in a->own. */
int conf_expand(struct args *a, struct err *e);
/* One file's text; `which` is the option that named it. */
int conf_read(struct args *a, const char *which, const char *name, const char *text, size_t n,
              struct err *e);
