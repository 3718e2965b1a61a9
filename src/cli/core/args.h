/* The command line, parsed against the command table.
 *
 * Options may come before, between and after arguments. --opt value, --opt=value, -o value,
 * -ovalue and clusters of flags (-fq) all work; "--" ends the options, and what follows is the
 * command for a verb that takes one, arguments for any other. The command of `run` and `exec` may
 * also follow their argument directly ("exec web ls -l").
 */
#pragma once

#include "cli/core/cmd.h"

struct arg_opt {
    const struct opt *opt;
    const char *value; /* NULL for a flag */
};

struct args {
    const struct cmd *cmd;
    struct arg_opt *opts; /* in the order given */
    size_t n_opts;
    const char **pos;
    size_t n_pos;
    char **command; /* NULL-terminated, after "--"; NULL if there was none */
    size_t n_command;
    bool help, tree;    /* requested: nothing else was checked */
    bool help_all;      /* with help: every option */
    int rest;           /* of a group: index of the verb in argv */
    struct strlist own; /* values that are not from argv, but from files */
};

/* Parses argv[first...]; for a group, msb itself included, only the options before the verb. Fails
 * with EINVAL (usage) or ENOSYS (an option that is not available yet), or because of a settings
 * file (conf.h); strings point into argv, or are in `own`. */
int args_parse(const struct cmd *c, int first, int argc, char **argv, struct args *a,
               struct err *e);
void args_free(struct args *a);

/* Whether the option was given. It must be one of the verb's options (asserted). */
bool args_has(const struct args *a, const char *name);
/* Its value; NULL if it was not given. */
const char *args_get(const struct args *a, const char *name);
/* All values of a repeatable option. */
int args_list(const struct args *a, const char *name, struct strlist *ret);

/* "--name <NAME>", as messages and help spell it. */
void opt_spelling(const struct opt *o, char *out, size_t size);
/* "invalid value 'x' for '--memory <SIZE>': why" */
int args_bad_value(const struct args *a, const char *name, const char *value, const char *why,
                   struct err *e);
