/* msb secret set|list|rm: values for the environment of commands, by name. */
#include "store/secret.h"
#include "cli/args.h"
#include "cli/password.h"
#include "cli/select.h"
#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- set ------------------------------------------------------------------------------------- */

static int get_value(const char *name, char **ret, struct err *e)
{
    char question[SECRET_NAME_MAX + 32];
    if (!isatty(STDIN_FILENO))
        return password_from_stdin("value", SECRET_VALUE_MAX, ret, e);
    (void)snprintf(question, sizeof(question), "Value of %s: ", name);
    return password_ask(question, "value", SECRET_VALUE_MAX, ret, e);
}

static int set(const struct args *a, const struct store *s, struct err *e)
{
    const char *name = a->pos[0], *from = args_get(a, "from-env");
    char *value = NULL;
    int r = secret_check_name(name, e); /* before anybody types a value in vain */
    if (r == 0 && !from)
        r = get_value(name, &value, e);
    if (r == 0)
        r = secret_set(s, name, value, from, e);
    password_free(value);
    return r;
}

static int set_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    ui_set_quiet(args_has(a, "quiet"));
    int r = store_open(&s, &e);
    if (r == 0)
        r = set(a, &s, &e);
    store_close(&s);
    if (r < 0)
        return ui_fail(&e);
    ui_success("Stored", a->pos[0]);
    return EXIT_OK;
}

static const struct opt set_opts[] = {
    {.name = "from-env",
     .value = "VARIABLE",
     .help = "Store no value: take it from this variable of whoever runs a command"},
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_secret_set = {
    .name = "set",
    .group = GROUP_SANDBOX,
    .parent = &cmd_secret,
    .summary = "Store a secret, or replace it",
    .opts = {set_opts},
    .pos = {.name = "NAME",
            .help = "Its name, which is also that of the variable",
            .required = true},
    .details = "The value is read from standard input, or asked for on the terminal; never taken "
               "from an\n"
               "argument, which every process on the machine could read. It is kept in\n"
               "$MSB_HOME/secrets, readable by you alone.",
    .examples = "  msb secret set API_KEY < key.txt\n"
                "  msb secret set API_KEY              (asks for it)\n"
                "  msb secret set API_KEY --from-env OPENAI_API_KEY",
    .run = set_run,
};

/* --- list ------------------------------------------------------------------------------------ */

static json_t *list_json(const struct secret *list, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(
            all, json_pack("{s:s, s:s, s:o, s:o}", "name", list[i].name, "source",
                           *list[i].from_env ? "env" : "store", "variable",
                           *list[i].from_env ? json_string(list[i].from_env) : json_null(),
                           "updated_at", json_time(list[i].updated_ns)));
    return all;
}

static int list_table(const struct secret *list, size_t n)
{
    static const char *const headers[] = {"NAME", "SOURCE", "UPDATED"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < n; i++) {
        char source[SECRET_NAME_MAX + 8], when[TIME_TEXT_MAX];
        (void)snprintf(source, sizeof(source), *list[i].from_env ? "env %s" : "store",
                       list[i].from_env);
        time_local(list[i].updated_ns, when);
        table_add(&t, list[i].name);
        table_add(&t, source);
        table_add(&t, when);
    }
    int code = show_table(&t, TABLE_COLUMNS_MAX);
    table_free(&t);
    return code;
}

static int list_names(const struct secret *list, size_t n)
{
    int code = EXIT_OK;
    for (size_t i = 0; code == EXIT_OK && i < n; i++)
        code = ui_print_line(list[i].name);
    return code;
}

static int list_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    struct secret *list = NULL;
    size_t n = 0;
    int code = EXIT_OK, r = store_open(&s, &e);
    if (r == 0)
        r = secret_list(&s, &list, &n, &e);
    store_close(&s);
    if (r < 0)
        code = ui_fail(&e);
    else if (wants_json(a))
        code = ui_print_json(list_json(list, n));
    else if (args_has(a, "quiet"))
        code = list_names(list, n);
    else if (n == 0)
        ui_note("No secrets found.");
    else
        code = list_table(list, n);
    free(list);
    return code;
}

static const struct opt list_opts[] = {
    FORMAT_OPTION,
    {.name = "quiet", .letter = 'q', .help = "Print names and nothing else"},
    {0},
};

const struct cmd cmd_secret_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_SANDBOX,
    .parent = &cmd_secret,
    .summary = "Show the names of secrets",
    .opts = {list_opts},
    .examples = "  msb secret list --format json",
    .run = list_run,
};

/* --- remove ---------------------------------------------------------------------------------- */

static int remove_run(const struct args *a)
{
    return for_each_named(a, "Removed", secret_remove);
}

static const struct opt remove_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_secret_remove = {
    .name = "remove",
    .alias = "rm",
    .group = GROUP_SANDBOX,
    .parent = &cmd_secret,
    .summary = "Forget secrets",
    .opts = {remove_opts},
    .pos = {.name = "NAMES", .help = "Secrets to forget", .required = true, .many = true},
    .details = "A sandbox that is to have one of them can run commands again when it is stored "
               "anew.",
    .examples = "  msb secret rm API_KEY",
    .run = remove_run,
};

static const struct cmd *const secret_subs[] = {
    &cmd_secret_set,
    &cmd_secret_list,
    &cmd_secret_remove,
    NULL,
};

const struct cmd cmd_secret = {
    .name = "secret",
    .group = GROUP_SANDBOX,
    .summary = "Manage secrets",
    .subs = secret_subs,
    .details =
        "A sandbox is given secrets by name: msb create --secret-env API_KEY. Its commands find\n"
        "them in their environment. The value is looked up anew for each command, and is in no\n"
        "argument list, configuration, log or environment on the host.",
    .examples = "  msb secret set API_KEY < key.txt\n"
                "  msb run --secret-env API_KEY -- sh -c 'curl -H \"Authorization: $API_KEY\" ...'",
};
