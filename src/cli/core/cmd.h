/* The command table: the name, arguments, options and help of every verb.
 *
 * One description drives the parser, --help, --tree, the completions and the man pages. A verb is
 * one file that fills in a `const struct cmd` (with its option table and its function), a line in
 * verbs.h, and a line in table.c. A verb with `subs` is a group ("msb image"): it only leads to
 * its verbs.
 */
#pragma once

#include "util/err.h"
#include "util/strlist.h"

#include <stdbool.h>
#include <stddef.h>

enum opt_flag {
    OPT_REPEAT = 1,    /* may be given more than once; otherwise a second one is a usage error */
    OPT_LATER = 2,     /* documented, not built yet: refused, never ignored */
    OPT_HIDDEN = 4,    /* works, but help does not mention it */
    OPT_COMMON = 8,    /* --help shows it although it is in a group */
    OPT_OPTIONAL = 16, /* its value is optional: the next word is taken only if it is an absolute
                        * path, or "auto" if that is a value. "--opt=value" works for any value */
    OPT_DESTROYS = 32, /* may lose data: never suggested for a misspelled word */
    OPT_HYPHEN = 64,   /* its value may begin with '-' */
};

/* Tables name the members from `choices` on, and give the others by position. */
struct opt {
    const char *name;      /* long name without "--"; NULL ends a table */
    char letter;           /* short name; 0 = none */
    const char *value;     /* its value's name in help; NULL = it takes none */
    const char *help;      /* one line, no full stop; of a group's option, --help shows only what
                            * comes before a semicolon */
    unsigned flags;        /* enum opt_flag */
    const char *choices;   /* "a|b|c": the possible values; NULL = any */
    const char *alias;     /* another spelling that is accepted */
    const char *conflicts; /* an option of this verb that excludes this one */
};

/* A verb's own table, written where it is used. */
#define OPTIONS(...) ((const struct opt[]){__VA_ARGS__, {0}})

/* Options for one topic. --help-all and the manual list them under the title; --help shows the
 * common ones. */
struct opt_group {
    const char *title;
    const struct opt *opts;
};
#define GROUPS(...) ((const struct opt_group *const[]){__VA_ARGS__, NULL})

struct pos {
    const char *name; /* "NAME"; NULL = no such argument */
    const char *help;
    bool required;
    bool many; /* takes all remaining words */
};

/* How many words: exactly one, at least one, any number, at most one. */
#define ONE(word, what)                                  \
    {                                                    \
        .name = (word), .help = (what), .required = true \
    }
#define SOME(word, what)                                               \
    {                                                                  \
        .name = (word), .help = (what), .required = true, .many = true \
    }
#define ANY(word, what)                              \
    {                                                \
        .name = (word), .help = (what), .many = true \
    }
#define MAYBE(word, what)              \
    {                                  \
        .name = (word), .help = (what) \
    }

enum cmd_group { GROUP_SANDBOX, GROUP_IMAGE, GROUP_STORAGE, GROUP_INSTALL, GROUP_OTHER, GROUP_MAX };

enum cmd_flag {
    CMD_LATER = 1,    /* refused with "not available yet" */
    CMD_HIDDEN = 2,   /* not in help, --tree or completion */
    CMD_DESTROYS = 4, /* as OPT_DESTROYS */
    CMD_RAW = 16,     /* all words after its name are the command, which has its own parser */
    CMD_TERSE = 8,    /* --help shows none of its groups' options: they belong to another verb */
};

struct args;
struct oci_runtime;
struct store;
struct noun;
struct action;

struct cmd {
    const char *name;
    const char *alias;             /* one other name, shown in help */
    enum cmd_group group;          /* for a group's verb: that of the group, not repeated here */
    unsigned flags;                /* enum cmd_flag */
    const char *summary;           /* one line, no full stop */
    const struct cmd *const *subs; /* a group's verbs, NULL-terminated. One that msb itself or an
                                    * earlier group also has belongs to them */
    const struct cmd *otherwise;   /* of a group: the verb to run when the first word names none
                                    * ("msb port web") */
    const struct cmd *same;        /* set: this is a second spelling of that verb */
    const char *preset;            /* of a second spelling: an option that it implies ("--force");
                                    * of a group's: the verb to use if none follows ("list") */
    const struct opt *opts;        /* --help shows all of them; NULL = none */
    const struct opt_group *const *groups; /* more options, ends with NULL; or NULL */
    struct pos pos;
    struct pos then;          /* a second argument, or more; required */
    const char *command_help; /* set: everything after "--" is a command line */
    const char *command_name; /* its name in usage lines; NULL: COMMAND */
    const char *details;      /* paragraphs, separated by empty lines, or NULL */
    const char *examples;     /* one per line; --help shows the first three */
    /* What it does, in one of these ways: */
    int (*run)(const struct args *a); /* returns the exit code */
    /* The same with the store open; -errno is printed. */
    int (*with_store)(const struct args *a, const struct store *s, struct err *e);
    /* The same with a container runtime, by the group's `perform` (serve/oci.h). */
    int (*with_runtime)(const struct args *a, struct oci_runtime *rt, struct err *e);
    /* Checks the arguments before the runtime is opened; -errno. May be NULL. */
    int (*check)(const struct args *a, struct err *e);
    const struct noun *list, *inspect; /* shows all things of a kind, or one (noun.h) */
    const struct action *each;         /* acts on each of several things (select.h) */
    /* For a group: reads the options before the verb; GROUP_GOES_ON, or the exit code. May be NULL. */
    int (*before)(const struct args *a);
    /* For a group: runs one of its verbs that needs a runtime, and returns the exit code. */
    int (*perform)(const struct args *a);
};

/* A group's verbs. */
#define VERBS(...) ((const struct cmd *const[]){__VA_ARGS__, NULL})

/* All verbs, in the order of help; ends with NULL. */
extern const struct cmd *const cmd_table[];
/* Options that every verb takes. */
extern const struct opt global_opts[];
/* `msb` itself, for the options before the verb. */
extern const struct cmd root_cmd;

/* The group to which it belongs; NULL: msb itself. */
const struct cmd *cmd_parent(const struct cmd *c);
/* A group's verb, by name or alias; or NULL. */
const struct cmd *cmd_find(const struct cmd *in, const char *name);
/* The same, but a second spelling is returned as such. */
const struct cmd *cmd_find_spelling(const struct cmd *in, const char *name);
/* The verb most like `typed`; NULL if none is similar, or if that one destroys something or is not
 * available. */
const struct cmd *cmd_similar(const struct cmd *in, const char *typed);

/* Its name after the names of its groups, joined by `sep`: "image list". msb itself: "". */
enum { CMD_PATH_MAX = 64 };
void cmd_path(const struct cmd *c, char sep, char out[CMD_PATH_MAX]);

/* Calls fn for each option of the verb, the global ones included; stops at the first that returns
 * true and returns it. */
typedef bool (*opt_fn)(const struct opt *o, void *arg);
const struct opt *cmd_each_opt(const struct cmd *c, opt_fn fn, void *arg);

/* The name of the words after "--" in usage lines. */
const char *cmd_rest_name(const struct cmd *c);
/* "msb stop [OPTIONS] [NAMES]..." */
void cmd_usage(const struct cmd *c, char *out, size_t size);

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_POLICY = 3,
    EXIT_TIMED_OUT = 124,
    GROUP_GOES_ON = -1
};
