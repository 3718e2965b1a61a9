/* Sandbox settings from YAML files: --conf and related options.
 *
 *     image: python:3.12
 *     memory: 1G
 *     env: {DEBUG: "1"}
 *     net-rule: [allow@pypi.org]
 *     read-only: true
 *
 * Keys are option names, and each has the same effect as that option on the command line, so
 * nothing can be set that the command line cannot. Options on the actual command line come later
 * or, if there can be only one, replace those in files. Of several files, later ones take
 * precedence in the same way.
 */
#pragma once

#include "cli/core/args.h"

/* For the table: the options that name files. */
extern const struct opt_group conf_group;

/* Replaces them with the settings in their files. Strings are in a->own. */
int conf_expand(struct args *a, struct err *e);
/* One file's text; `which` is the option that named it. */
int conf_read(struct args *a, const char *which, const char *name, const char *text, size_t n,
              struct err *e);
