/* From the command line to the verb. Nothing else happens on the way: `msb exec` is on the hot
 * path of its clients. */
#include "cli/args.h"
#include "cli/help.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/term.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { HELP_COLUMNS = 100 };

static int print_help(const struct cmd *c)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    unsigned columns = term_columns(STDOUT_FILENO, HELP_COLUMNS);
    if (columns > HELP_COLUMNS)
        columns = HELP_COLUMNS;
    if (c)
        help_cmd(c, &out, columns);
    else
        help_root(&out, columns);
    int code = ui_print(&out);
    buf_free(&out);
    return code;
}

static int print_tree(const struct cmd *c)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    help_tree(c, &out);
    int code = ui_print(&out);
    buf_free(&out);
    return code;
}

static void set_verbosity(const struct args *a)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    for (size_t i = 0; i < a->n_opts; i++)
        for (int v = 0; v < 5; v++)
            if (strcmp(a->opts[i].opt->name, names[v]) == 0)
                ui_set_verbosity((enum verbosity)(UI_ERROR + v));
}

static int unknown_verb(const char *word)
{
    struct err e = {0};
    err_set(&e, EINVAL, "unrecognized subcommand '%s'", word);
    const struct cmd *similar = cmd_similar(word);
    if (similar)
        err_hint(&e, "a similar subcommand exists: '%s'", similar->name);
    err_hint(&e, "'msb --help' lists them");
    return ui_usage(&e);
}

static int not_yet(const char *typed)
{
    struct err e = {0};
    err_set(&e, ENOSYS, "'msb %s' is not available yet", typed);
    err_hint(&e, "'msb --help' lists what this version can do");
    return ui_fail(&e);
}

static int run_verb(const struct cmd *c, int first, int argc, char **argv)
{
    struct args a;
    struct err e = {0};
    int r = args_parse(c, first, argc, argv, &a, &e);
    int code;
    set_verbosity(&a);
    if (r < 0)
        code = r == -EINVAL ? ui_usage(&e) : ui_fail(&e);
    else if (a.help)
        code = print_help(c);
    else if (a.tree)
        code = print_tree(c);
    else
        code = c->run(&a);
    args_free(&a);
    return code;
}

static int help_run(const struct args *a)
{
    if (a->n_pos == 0)
        return print_help(NULL);
    const struct cmd *c = cmd_find(a->pos[0]);
    if (!c)
        return unknown_verb(a->pos[0]);
    return c->flags & CMD_LATER ? not_yet(a->pos[0]) : print_help(c);
}

const struct cmd cmd_help = {
    .name = "help",
    .group = GROUP_OTHER,
    .summary = "Print help for msb or for one of its commands",
    .pos = {.name = "COMMAND", .help = "Command to explain"},
    .examples = "  msb help run",
    .run = help_run,
};

int cli_main(int argc, char **argv)
{
    struct args root;
    struct err e = {0};
    int r = args_parse_root(argc, argv, &root, &e);
    bool version = r == 0 && !root.help && !root.tree && args_has(&root, "version");
    bool help = root.help, tree = root.tree;
    int at = root.rest;
    set_verbosity(&root);
    args_free(&root);
    if (r < 0)
        return r == -EINVAL ? ui_usage(&e) : ui_fail(&e);
    if (version)
        return ui_print_line("msb " MSB_VERSION);
    if (tree)
        return print_tree(NULL);
    if (help || at >= argc)
        return print_help(NULL);
    const struct cmd *c = cmd_find(argv[at]);
    if (!c)
        return unknown_verb(argv[at]);
    if (c->flags & CMD_LATER)
        return not_yet(argv[at]);
    return run_verb(c, at + 1, argc, argv);
}
