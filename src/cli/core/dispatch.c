/* From the command line to the verb, and nothing else: `msb exec` is on its clients' hot path. */
#include "cli/core/args.h"
#include "cli/core/common_opts.h"
#include "cli/core/habits.h"
#include "cli/core/help.h"
#include "cli/core/noun.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "policy/rulebook.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HELP_COLUMNS = 80 };

/* NULL: msb itself. */
static int print_help(const struct cmd *c, bool all)
{
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    unsigned columns = MIN(term_columns(STDOUT_FILENO, HELP_COLUMNS), (unsigned)HELP_COLUMNS);
    if (c)
        help_cmd(c, all, &out, columns);
    else
        help_root(all, &out, columns);
    return ui_print(&out);
}

static int print_tree(const struct cmd *c)
{
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    help_tree(c, &out);
    return ui_print(&out);
}

/* The global options, and --quiet of the verbs that have it. */
static void set_verbosity(const struct args *a)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    ui_set_verbosity(UI_DEFAULT);
    for (size_t i = 0; i < a->n_opts; i++) {
        const char *name = a->opts[i].opt->name;
        if (strcmp(name, "quiet") == 0)
            ui_set_quiet();
        for (size_t v = 0; v < ARRAY_LEN(names); v++)
            if (strcmp(name, names[v]) == 0)
                ui_set_verbosity((enum verbosity)(UI_ERROR + v));
    }
}

static int unknown_verb(const struct cmd *in, const char *word)
{
    struct err e = {0};
    char path[CMD_PATH_MAX];
    cmd_path(in, ' ', path);
    err_set(&e, EINVAL, "unrecognized subcommand '%s'", word);
    const char *instead = in == &root_cmd ? habit_of_verb(word) : NULL;
    const struct cmd *similar = instead ? NULL : cmd_similar(in, word);
    if (instead) {
        err_hint(&e, "%s", instead);
        return ui_usage(&e);
    }
    if (similar)
        err_hint(&e, "a similar subcommand exists: '%s'", similar->name);
    err_hint(&e, "'msb%s%s --help' lists them", *path ? " " : "", path);
    return ui_usage(&e);
}

static int no_verb(const struct cmd *in)
{
    struct err e = {0};
    char path[CMD_PATH_MAX], list[256] = "";
    cmd_path(in, ' ', path);
    err_set(&e, EINVAL, "'msb %s' requires a subcommand but one was not provided", path);
    for (const struct cmd *const *c = in->subs; *c; c++) {
        size_t n = strlen(list);
        if (!((*c)->flags & (CMD_HIDDEN | CMD_LATER)))
            (void)snprintf(list + n, sizeof(list) - n, "%s%s", n ? ", " : "", (*c)->name);
    }
    err_hint(&e, "subcommands: %s", list);
    err_hint(&e, "see 'msb %s --help'", path);
    return ui_usage(&e);
}

static int not_yet(const struct cmd *in, const char *typed)
{
    struct err e = {0};
    char path[CMD_PATH_MAX];
    cmd_path(in, ' ', path);
    err_set(&e, ENOSYS, "'msb %s%s%s' is not available yet", path, *path ? " " : "", typed);
    err_hint(&e, "'msb%s%s --help' lists the commands of this version", *path ? " " : "", path);
    return ui_fail(&e);
}

/* Help is msb's own; everything else goes to the verb unchanged. */
static int run_raw(const struct cmd *c, int first, int argc, char **argv)
{
    struct args a = {.cmd = c, .command = argv + first, .n_command = (size_t)(argc - first)};
    const char *word = first < argc ? argv[first] : "--help";
    bool all = strcmp(word, "--help-all") == 0;
    if (all || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return print_help(c, all);
    if (strcmp(word, "--tree") == 0)
        return print_tree(c);
    return c->run(&a);
}

int store_open_for(const struct args *a, struct store *s, struct err *e)
{
    int r = store_open(s, e);
    for (size_t i = 0; i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, "policy") == 0)
            s->policy_file = a->opts[i].value;
    return r;
}

static int run_with_store(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    int r = store_open_for(a, &s, &e);
    if (r == 0)
        r = a->cmd->with_store(a, &s, &e);
    return r < 0 ? ui_fail(&e) : r;
}

static int perform(const struct cmd *c, const struct args *a)
{
    if (c->list)
        return noun_list(c->list, a);
    if (c->inspect)
        return noun_inspect(c->inspect, a);
    if (c->each)
        return for_each(a, c->each);
    if (c->with_runtime)
        return cmd_parent(c)->perform(a);
    return c->with_store ? run_with_store(a) : c->run(a);
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
        code = print_help(c, a.help_all);
    else if (a.tree)
        code = print_tree(c);
    else
        code = perform(c, &a);
    args_free(&a);
    return code;
}

/* "msb audit --since 1h": a group with its own options has a verb that takes them, which runs
 * unless another one is named. */
static bool takes_options(const struct cmd *c, int first, int argc, char **argv)
{
    static const char *const about[] = {"-h", "--help", "--help-all", "--tree"};
    if (!c->otherwise || c->otherwise->opts != c->opts)
        return false;
    for (size_t i = 0; first < argc && i < ARRAY_LEN(about); i++)
        if (strcmp(argv[first], about[i]) == 0)
            return false;
    return first >= argc || argv[first][0] == '-';
}

/* Options of msb or of a group, then the verb. */
static int run_group(const struct cmd *c, int first, int argc, char **argv)
{
    if (takes_options(c, first, argc, argv))
        return run_verb(c->otherwise, first, argc, argv);
    struct args a;
    struct err e = {0};
    bool root = c == &root_cmd;
    int r = args_parse(c, first, argc, argv, &a, &e);
    bool version = r == 0 && root && !a.help && !a.tree && args_has(&a, "version");
    bool help = a.help, all = a.help_all, tree = a.tree;
    int at = a.rest;
    set_verbosity(&a);
    int done = r == 0 && c->before && !help && !tree ? c->before(&a) : GROUP_GOES_ON;
    args_free(&a);
    if (r < 0)
        return r == -EINVAL ? ui_usage(&e) : ui_fail(&e);
    if (version)
        return ui_print_line("msb " MSB_VERSION);
    if (done != GROUP_GOES_ON)
        return done;
    if (tree)
        return print_tree(root ? NULL : c);
    if (help || (root && at >= argc))
        return print_help(root ? NULL : c, all);
    if (at >= argc)
        return no_verb(c);
    const struct cmd *spelling = cmd_find_spelling(c, argv[at]);
    if (!spelling && c->otherwise)
        return run_verb(c->otherwise, at, argc, argv);
    if (!spelling)
        return unknown_verb(c, argv[at]);
    const struct cmd *verb = spelling->same ? spelling->same : spelling;
    if (verb->flags & CMD_LATER)
        return not_yet(c, argv[at]);
    if (verb->subs && spelling->preset && (at + 1 == argc || argv[at + 1][0] == '-'))
        return run_verb(cmd_find(verb, spelling->preset), at + 1, argc, argv);
    if (verb->subs)
        return run_group(verb, at + 1, argc, argv);
    if (verb->flags & CMD_RAW)
        return run_raw(verb, at + 1, argc, argv);
    if (!spelling->preset)
        return run_verb(verb, at + 1, argc, argv);
    argv[at] = (char *)spelling->preset; /* in place of the verb's name, now unneeded */
    return run_verb(verb, at, argc, argv);
}

static int help_run(const struct args *a)
{
    const struct cmd *c = &root_cmd;
    for (size_t i = 0; i < a->n_pos; i++) {
        const struct cmd *verb = c->subs ? cmd_find(c, a->pos[i]) : NULL;
        if (!verb && !c->subs)
            break;
        if (!verb)
            return unknown_verb(c, a->pos[i]);
        if (verb->flags & CMD_LATER)
            return not_yet(c, a->pos[i]);
        c = verb;
    }
    return print_help(c == &root_cmd ? NULL : c, false);
}

const struct cmd cmd_help = {
    .name = "help",
    .group = GROUP_OTHER,
    .summary = "Print help for msb or a command",
    .pos = ANY("COMMAND", "Command to print help for"),
    .examples = "  msb help run\n"
                "  msb help image list",
    .run = help_run,
};

void (*cli_created)(const struct sandbox_spec *spec);

int cli_run(int argc, char **argv)
{
    return run_group(&root_cmd, 1, argc, argv);
}

int cli_main(int argc, char **argv)
{
    audit_on_failure(ui_warn);
    audit_configure_with(policy_audit);
    return cli_run(argc, argv);
}
