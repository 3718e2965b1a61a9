/* Verbs that do something to each of several things: which ones, and the loop over them. */
#ifndef MSB_CLI_CORE_SELECT_H
#define MSB_CLI_CORE_SELECT_H

#include "cli/core/args.h"
#include "store/store.h"

/* For verbs that select sandboxes by name and label. */
/* clang-format off */
#define LABEL_SELECTOR(does) \
    {"label", 0, "KEY[=VALUE]", does " every sandbox with all of these labels, too", OPT_REPEAT}
#define NAMES_POSITION(does) \
    {.name = "NAMES", .help = does "; optional with --label", .many = true}
/* clang-format on */

struct action {
    const char *doing; /* "Stopping", for the spinner; NULL = none */
    const char *done;  /* "Stopped", for the success line; NULL: fn prints its own */
    /* A failure without a message is not printed. */
    int (*fn)(const struct store *s, const struct args *a, const char *name, struct err *e);
    bool all; /* to every sandbox that runs, too */
};

/* Each does the action to all, prints what was done and what failed, and returns the exit code: 0,
 * or 1 if any failed. */

/* To the sandboxes named, and to those that have all labels given; 2 if there is neither. */
int for_each_selected(const struct args *a, const struct action *act);
/* To what the arguments name. */
int for_each_named(const struct args *a, const struct action *act);

#endif
