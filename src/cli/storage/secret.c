/* Secrets: set, list, remove. */
#include "store/secret.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/password.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/modify.h"
#include "util/parse.h"

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

static int get_ttl(const struct args *a, uint32_t *ret, struct err *e)
{
    const char *v = args_get(a, "ttl");
    uint64_t ms = SECRET_TTL_DEFAULT_S * 1000ULL;
    if (v && !args_has(a, "command"))
        return err_set(e, EINVAL, "--ttl requires --command: it limits how long its value is used");
    if (v && (parse_duration_ms(v, &ms) < 0 || ms < 1000 || ms / 1000 > SECRET_TTL_MAX_S))
        return args_bad_value(a, "ttl", v, "expected 1s to 30d, such as 10m", e);
    *ret = (uint32_t)(ms / 1000);
    return 0;
}

static int set(const struct args *a, const struct store *s, struct err *e)
{
    const char *name = a->pos[0];
    struct secret_source from = {.from_env = args_get(a, "from-env"),
                                 .command = args_get(a, "command")};
    char *value = NULL;
    int r = secret_check_name(name, e); /* before the user types a value */
    if (r == 0)
        r = get_ttl(a, &from.ttl_s, e);
    if (r == 0 && !from.from_env && !from.command)
        r = get_value(name, &value, e);
    from.value = value;
    if (r == 0)
        r = secret_set(s, name, &from, e);
    password_free(value);
    if (r < 0)
        return r;
    sandboxes_refresh_secret(s, name, ui_warn);
    ui_success("Stored", name);
    return EXIT_OK;
}

static const struct cmd cmd_secret_set = {
    .name = "set",
    .summary = "Store or replace a secret",
    .opts =
        OPTIONS({"from-env", 0, "VARIABLE",
                 "Store no value: read it from the caller's environment for each command",
                 .conflicts = "command"},
                {"command", 0, "COMMAND",
                 "Store no value: run COMMAND on this host when a request needs it (see --secret)"},
                {"ttl", 0, "DURATION", "How long a value from COMMAND can be used (default: 10m)"},
                QUIET_OPTION),
    .pos = ONE("NAME", "Name of the secret, and of the variable in the sandbox"),
    .details = "The value is read from standard input or asked for on the terminal; it is never an "
               "argument, which every process on the host could read. It is stored in "
               "$MSB_HOME/secrets, readable only by you. Running sandboxes that it is bound in "
               "(--secret) use the new value from their next request on. With --command, the value "
               "is the line that COMMAND prints within 30 seconds; it can only be bound to hosts. "
               "/bin/sh runs it as you, in the environment of the command that started the "
               "sandbox, when a request first needs the value and again when it has expired.",
    .examples = "  msb secret set API_KEY < key.txt\n"
                "  msb secret set API_KEY              (asks for the value)\n"
                "  msb secret set API_KEY --from-env OPENAI_API_KEY\n"
                "  msb secret set GH_TOKEN --command 'gh auth token' --ttl 10m",
    .with_store = set,
};

/* --- list ------------------------------------------------------------------------------------ */

static const struct secret *secret_item(const struct items *l, size_t i)
{
    return (const struct secret *)l->v + i;
}

static json_t *secret_json(const struct items *l, size_t i)
{
    const struct secret *x = secret_item(l, i);
    return json_pack("{s:s, s:s, s:o, s:o}", "name", x->name, "source",
                     x->ttl_s       ? "command"
                     : *x->from_env ? "env"
                                    : "store",
                     "variable", json_text(x->from_env), "updated_at", json_time(x->updated_ns));
}

static void secret_item_row(const struct items *l, size_t i, struct table *t)
{
    const struct secret *x = secret_item(l, i);
    char source[SECRET_NAME_MAX + 8], when[TIME_TEXT_MAX];
    (void)snprintf(source, sizeof(source),
                   x->ttl_s       ? "command"
                   : *x->from_env ? "env %s"
                                  : "store",
                   x->from_env);
    time_local(x->updated_ns, when);
    TABLE_ROW(t, x->name, source, when);
}

static const struct noun secrets = {
    .none = "No secrets found.",
    .headers = {"NAME", "SOURCE", "UPDATED"},
    .kind = &named_secrets,
    .row = secret_item_row,
    .json = secret_json,
};

static const struct cmd cmd_secret_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List secrets, without their values",
    .opts = list_opts,
    .examples = "  msb secret ls\n"
                "  msb secret ls --format json",
    .list = &secrets,
};

/* --- remove ---------------------------------------------------------------------------------- */

static const struct cmd cmd_secret_remove = {
    .name = "remove",
    .alias = "rm",
    .flags = CMD_DESTROYS,
    .summary = "Remove secrets",
    .opts = quiet_opts,
    .pos = SOME("NAMES", "Secrets to remove"),
    .details = "A sandbox that uses a removed secret cannot run commands until it is set again.",
    .examples = "  msb secret rm API_KEY",
    .each = &(const struct action){.done = "Removed", .plain = secret_remove},
};

const struct cmd cmd_secret = {
    .name = "secret",
    .group = GROUP_SANDBOX,
    .summary = "Manage secrets",
    .subs = VERBS(&cmd_secret_set, &cmd_secret_list, &cmd_secret_remove),
    .details =
        "Sandboxes are given secrets by name, and their commands find the values in their "
        "environment. A value is looked up for each command; it never appears in an argument "
        "list, a configuration, a log or an environment on the host.",
    .examples = "  msb secret set API_KEY < key.txt\n"
                "  msb run --secret-env API_KEY -- sh -c 'curl -H \"Authorization: $API_KEY\" ...'",
};
