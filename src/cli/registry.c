/* msb registry login|logout|list: credentials. */
#include "registry/registry.h"
#include "cli/args.h"
#include "cli/password.h"
#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "registry/auth_store.h"
#include "store/store.h"
#include "util/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int get_password(const struct args *a, const char *registry, char **ret, struct err *e)
{
    char question[256];
    if (args_has(a, "password-stdin"))
        return password_from_stdin("password", CREDENTIALS_TEXT_MAX, ret, e);
    if (isatty(STDIN_FILENO)) {
        (void)snprintf(question, sizeof(question),
                       "Password for %s at %s: ", args_get(a, "username"), registry);
        return password_ask(question, "password", CREDENTIALS_TEXT_MAX, ret, e);
    }
    err_set(e, EINVAL, "standard input is no terminal to ask for a password");
    err_hint(e, "pass it on standard input: --password-stdin");
    return -EINVAL;
}

/* --- login ---------------------------------------------------------------------------------- */

/* "ghcr.io", also where people paste "https://ghcr.io/". */
static int registry_name(const char *text, char **ret, struct err *e)
{
    AUTO_FREE char *host = docker_key_registry(text);
    AUTO_FREE char *image = NULL;
    struct reference ref;
    if (!host || asprintf(&image, "%s/x", host) < 0) {
        image = NULL;
        return err_oom(e);
    }
    bool ok = reference_parse(image, &ref, NULL) == 0;
    if (ok) {
        ok = strcmp(ref.registry, host) == 0; /* "myhost/x" would be Docker Hub's */
        reference_free(&ref);
    }
    if (!ok) {
        err_set(e, EINVAL, "'%.200s' is no registry", text);
        err_hint(e, "a registry is a host, with a port if need be: docker.io, localhost:5000");
        return -EINVAL;
    }
    *ret = steal_ptr(&host);
    return 0;
}

static int login(const struct args *a, const char *home, const char *registry, struct err *e)
{
    const char *user = args_get(a, "username");
    struct credentials c = {.username = strdup(user ? user : "")};
    struct registry_options opt = {
        .home = home, .insecure = args_has(a, "insecure"), .ca_certs = args_get(a, "ca-certs")};
    int r = c.username ? get_password(a, registry, &c.password, e) : err_oom(e);
    if (r == 0 && (!c.username || strchr(c.username, ':') || !*c.username))
        r = err_set(e, EINVAL, "a user name is not empty and has no ':' in it");
    (void)signal(SIGPIPE, SIG_IGN);
    if (r == 0)
        r = registry_check_login(registry, c.username, c.password, &opt, e);
    if (r == 0)
        r = auth_store_put(home, registry, &c, e);
    credentials_free(&c);
    return r;
}

/* Runs fn with the store's home and the registry of the first argument. */
static int with_registry(const struct args *a, const char *did,
                         int (*fn)(const struct args *a, const char *home, const char *registry,
                                   struct err *e))
{
    AUTO_FREE char *registry = NULL;
    struct store s;
    struct err e = {0};
    ui_set_quiet(args_has(a, "quiet"));
    int r = registry_name(a->n_pos ? a->pos[0] : REFERENCE_HUB, &registry, &e);
    if (r < 0)
        return ui_usage(&e);
    r = store_open(&s, &e);
    if (r == 0)
        r = fn(a, s.home, registry, &e);
    store_close(&s);
    if (r < 0)
        return ui_fail(&e);
    ui_success(did, registry);
    return EXIT_OK;
}

static int login_run(const struct args *a)
{
    if (!args_get(a, "username")) {
        struct err e = {0};
        err_set(&e, EINVAL,
                "the following required arguments were not provided: --username <USER>");
        err_hint(&e, "see 'msb registry login --help'");
        return ui_usage(&e);
    }
    return with_registry(a, "Logged in", login);
}

static const struct opt login_opts[] = {
    {.name = "username", .letter = 'u', .value = "USER", .help = "Who to log in as"},
    {.name = "password-stdin", .help = "Read the password from standard input"},
    {.name = "insecure", .help = "Allow plain HTTP and certificates that nobody vouches for"},
    {.name = "ca-certs", .value = "PEM", .help = "Trust the certificates in this file, too"},
    {.name = "quiet", .letter = 'q', .help = "Say nothing but errors"},
    {0},
};

const struct cmd cmd_registry_login = {
    .name = "login",
    .group = GROUP_IMAGE,
    .parent = &cmd_registry,
    .summary = "Log in to a registry",
    .opts = {login_opts},
    .pos = {.name = "REGISTRY", .help = "Host, with its port if need be (default: docker.io)"},
    .details = "The registry is asked whether it accepts the password; only then it is kept, in\n"
               "$MSB_HOME/registry/auth.json, readable by you alone. Without --password-stdin it "
               "is asked\n"
               "for on the terminal. Docker's logins work without this.",
    .examples = "  msb registry login ghcr.io -u octocat --password-stdin < token.txt",
    .run = login_run,
};

/* --- logout --------------------------------------------------------------------------------- */

static int logout(const struct args *a, const char *home, const char *registry, struct err *e)
{
    (void)a;
    return auth_store_remove(home, registry, e);
}

static int logout_run(const struct args *a)
{
    return with_registry(a, "Logged out", logout);
}

static const struct opt logout_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Say nothing but errors"},
    {0},
};

const struct cmd cmd_registry_logout = {
    .name = "logout",
    .group = GROUP_IMAGE,
    .parent = &cmd_registry,
    .summary = "Forget the credentials for a registry",
    .opts = {logout_opts},
    .pos = {.name = "REGISTRY", .help = "Host, with its port if need be (default: docker.io)"},
    .examples = "  msb registry logout ghcr.io",
    .run = logout_run,
};

/* --- list ----------------------------------------------------------------------------------- */

struct listing {
    json_t *json;
    struct table table;
};

static void list_one(void *ctx, const char *registry, const char *username)
{
    struct listing *l = ctx;
    (void)json_array_append_new(
        l->json, json_pack("{s:s, s:s}", "registry", registry, "username", username));
    table_add(&l->table, registry);
    table_add(&l->table, username);
}

static int print_names(const json_t *list)
{
    struct buf out;
    size_t i;
    json_t *j;
    buf_init(&out, SIZE_MAX / 2);
    json_array_foreach(list, i, j)(void)
        buf_printf(&out, "%s\n", json_string_value(json_object_get(j, "registry")));
    int code = ui_print(&out);
    buf_free(&out);
    return code;
}

static int list_run(const struct args *a)
{
    static const char *const headers[] = {"REGISTRY", "USERNAME"};
    struct listing l = {.json = json_array()};
    struct store s;
    struct err e = {0};
    table_init(&l.table, ARRAY_LEN(headers), headers);
    int r = store_open(&s, &e);
    if (r == 0)
        r = auth_store_each(s.home, list_one, &l, &e);
    store_close(&s);
    int code;
    if (r < 0)
        code = ui_fail(&e);
    else if (args_has(a, "quiet"))
        code = print_names(l.json);
    else if (wants_json(a))
        code = ui_print_json(json_incref(l.json));
    else if (json_array_size(l.json) == 0)
        code = ui_print_line("No registries configured.");
    else
        code = show_table(&l.table, TABLE_COLUMNS_MAX);
    json_decref(l.json);
    table_free(&l.table);
    return code;
}

static const struct opt list_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Print names and nothing else"},
    FORMAT_OPTION,
    {0},
};

const struct cmd cmd_registry_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_IMAGE,
    .parent = &cmd_registry,
    .summary = "Show the registries there are credentials for",
    .opts = {list_opts},
    .examples = "  msb registry list --format json",
    .run = list_run,
};

static const struct cmd *const registry_subs[] = {
    &cmd_registry_login,
    &cmd_registry_logout,
    &cmd_registry_list,
    NULL,
};

const struct cmd cmd_registry = {
    .name = "registry",
    .group = GROUP_IMAGE,
    .summary = "Manage registry credentials",
    .subs = registry_subs,
    .details =
        "Credentials that are kept here are used before those of Docker's config.json. Mirrors\n"
        "and certificates are set in registries.json, which 'man msb-registry' describes.",
    .examples = "  msb registry login docker.io -u me\n"
                "  msb registry list",
};
