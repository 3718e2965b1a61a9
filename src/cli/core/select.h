/* Verbs that do something to each of several things: which ones, and the loop over them. */
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
    /* One of these. A failure without a message is not printed. */
    int (*fn)(const struct store *s, const struct args *a, const char *name, struct err *e);
    int (*plain)(const struct store *s, const char *name, struct err *e);
    /* Looks at the options before anything is done; may be NULL. Failing is a usage error. */
    int (*check)(const struct args *a, struct err *e);
    bool labels; /* to sandboxes, also those that have all labels given; there must be one */
    bool all;    /* with --all, also to every one that runs */
};

/* Does the action to all that the arguments name, prints what was done and what failed, and returns
 * the exit code: 0, or 1 if any failed. */
int for_each(const struct args *a, const struct action *act);
