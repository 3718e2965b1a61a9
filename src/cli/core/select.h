/* Verbs that act on each of several things: selecting them, and the loop over them. */
#pragma once

#include "cli/core/args.h"
#include "store/store.h"

/* For verbs that select sandboxes by name and label. */
/* clang-format off */
#define LABEL_SELECTOR(does) \
    {"label", 0, "KEY[=VALUE]", does " every sandbox with all of these labels, too", OPT_REPEAT}
#define NAMES_POSITION(does) \
    ANY("NAMES", does "; optional with --label")
/* clang-format on */

struct action {
    const char *doing; /* "Stopping", for the spinner; NULL = none */
    const char *done;  /* "Stopped", for the success line; NULL: fn prints its own */
    /* Set one of these. A failure without a message is not printed. */
    int (*fn)(const struct store *s, const struct args *a, const char *name, struct err *e);
    int (*plain)(const struct store *s, const char *name, struct err *e);
    /* Checks the options before anything is done; may be NULL. Failure is a usage error. */
    int (*check)(const struct args *a, struct err *e);
    bool labels; /* also select sandboxes by labels, all of which must match; select at least one */
    bool all;    /* with --all, also every running one */
};

/* Applies the action to everything that the arguments name, prints what was done and what failed,
 * and returns the exit code: 0, or 1 if any failed. */
int for_each(const struct args *a, const struct action *act);
