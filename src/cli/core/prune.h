/* Verbs that remove all unused things of a kind. */
#pragma once

#include "cli/core/args.h"
#include "image/store/store.h"

/* clang-format off */
#define YES_OPTION {"yes", 'y', NULL, "Do not ask for confirmation"}
/* As other tools spell it. */
#define FORCE_YES_OPTION {"force", 'f', NULL, "The same", OPT_HIDDEN}
/* clang-format on */

/* Asks, unless --yes or --force was given. 1: yes; 0: no, and the user was told that nothing is
 * done; -errno if there is no terminal to ask on. what: "cached images". */
int prune_confirm(const struct args *a, const char *question, const char *what, struct err *e);

/* image/prune.c: all images that no sandbox uses. */
int prune_images(struct image_collected *done, struct err *e);
