/* Which sandboxes a verb is for: names, labels, or both. */
#ifndef MSB_CLI_SELECT_H
#define MSB_CLI_SELECT_H

#include "cli/args.h"
#include "store/store.h"

/* For the option table of a verb that selects. */
#define LABEL_SELECTOR(does)                                                                       \
    {                                                                                              \
        .name = "label", .value = "KEY[=VALUE]",                                                   \
        .help = does " every sandbox with this label, beside those named; several must all match", \
        .flags = OPT_REPEAT                                                                        \
    }
#define NAMES_POSITION(does)                                                         \
    {                                                                                \
        .name = "NAMES", .help = does "; may be left out with --label", .many = true \
    }

/* The names given and those of the sandboxes that carry all labels given, each once. */
int select_names(const struct store *s, const struct args *a, struct strlist *ret, struct err *e);

/* Opens the store, selects, calls fn for each name and reports its failures. Returns the exit
 * code: 0, 1 if any failed, 2 if nothing was selected. A failure of fn with an empty message is not
 * printed. */
typedef int (*each_fn)(const struct store *s, const struct args *a, const char *name,
                       struct err *e);
int for_each_selected(const struct args *a, each_fn fn);

/* For verbs that act on things of another kind by name: calls fn for each, says `did` of those that
 * it was done to, and reports failures. Returns the exit code. */
typedef int (*named_fn)(const struct store *s, const char *name, struct err *e);
int for_each_named(const struct args *a, const char *did, named_fn fn);

#endif
