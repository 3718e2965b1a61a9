/* Registry credentials: login, logout, list. */
#include "registry/registry.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/password.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "registry/auth_store.h"
#include "store/store.h"
#include "util/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REGISTRY_HELP "Registry, as HOST[:PORT] (default: docker.io)"

static int get_username(const struct args *a, const char *registry, char **ret, struct err *e)
{
    const char *user = args_get(a, "username");
    char question[256];
    if (!user) { /* login_run() has seen a terminal */
        (void)snprintf(question, sizeof(question), "User name at %s: ", registry);
        return name_ask(question, "user name", CREDENTIALS_TEXT_MAX, ret, e);
    }
    *ret = strdup(user);
    return *ret ? 0 : err_oom(e);
}

static int get_password(const struct args *a, const char *registry, const char *user, char **ret,
                        struct err *e)
{
    char question[256];
    if (args_has(a, "password-stdin"))
        return password_from_stdin("password", CREDENTIALS_TEXT_MAX, ret, e);
    if (isatty(STDIN_FILENO)) {
        (void)snprintf(question, sizeof(question), "Password for %s at %s: ", user, registry);
        return password_ask(question, "password", CREDENTIALS_TEXT_MAX, ret, e);
    }
    err_set(e, EINVAL, "cannot ask for a password: standard input is not a terminal");
    err_hint(e, "pass it on standard input with --password-stdin");
    return -EINVAL;
}

/* --- login ---------------------------------------------------------------------------------- */

/* "ghcr.io"; "https://ghcr.io/", which people paste, is also accepted. */
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
    if (!ok)
        return err_hinted(
            e, err_set(e, EINVAL, "invalid registry '%.200s': expected HOST[:PORT]", text),
            "for example docker.io or localhost:5000");
    *ret = steal_ptr(&host);
    return 0;
}

static int login(const struct args *a, const char *home, const char *registry, struct err *e)
{
    struct credentials c = {0};
    struct registry_options opt = {
        .home = home, .insecure = args_has(a, "insecure"), .ca_certs = args_get(a, "ca-certs")};
    int r = get_username(a, registry, &c.username, e);
    if (r == 0 && (strchr(c.username, ':') || !*c.username))
        r = err_set(e, EINVAL, "invalid user name: it must not be empty or contain ':'");
    if (r == 0)
        r = get_password(a, registry, c.username, &c.password, e);
    (void)signal(SIGPIPE, SIG_IGN);
    if (r == 0)
        r = registry_check_login(registry, c.username, c.password, &opt, e);
    if (r == 0)
        r = auth_store_put(home, registry, &c, e);
    credentials_free(&c);
    return r;
}

/* Runs fn with the store's home and the registry of the first argument. 1 from it: nothing was
 * done. */
static int with_registry(const struct args *a, const char *did,
                         int (*fn)(const struct args *a, const char *home, const char *registry,
                                   struct err *e))
{
    AUTO_FREE char *registry = NULL;
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    int r = registry_name(a->n_pos ? a->pos[0] : REFERENCE_HUB, &registry, &e);
    if (r < 0)
        return ui_usage(&e);
    r = store_open(&s, &e);
    if (r == 0)
        r = fn(a, s.home, registry, &e);
    if (r < 0)
        return ui_fail(&e);
    if (r == 0)
        ui_success(did, registry);
    return EXIT_OK;
}

static int login_run(const struct args *a)
{
    bool can_ask = isatty(STDIN_FILENO) && !args_has(a, "password-stdin");
    if (!args_get(a, "username") && !can_ask) {
        struct err e = {0};
        err_set(&e, EINVAL,
                "the following required arguments were not provided: --username <USER>");
        err_hint(&e, "see 'msb registry login --help'");
        return ui_usage(&e);
    }
    return with_registry(a, "Logged in", login);
}

const struct cmd cmd_registry_login = {
    .name = "login",
    .summary = "Log in to a registry",
    .opts = OPTIONS({"username", 'u', "USER", "User name; asked for on a terminal"},
                    {"password-stdin", 0, NULL, "Read the password from standard input"},
                    INSECURE_OPTION, CA_CERTS_OPTION, QUIET_OPTION),
    .pos = MAYBE("REGISTRY", REGISTRY_HELP),
    .details = "The password is asked for on the terminal unless --password-stdin is given. It is "
               "stored only if the registry accepts it, in $MSB_HOME/registry/auth.json, readable "
               "only by you. Docker's logins work without this.",
    .examples = "  msb registry login -u octocat ghcr.io\n"
                "  msb registry login -u octocat --password-stdin ghcr.io < token.txt",
    .run = login_run,
};

/* --- logout --------------------------------------------------------------------------------- */

static int logout(const struct args *a, const char *home, const char *registry, struct err *e)
{
    int r = auth_store_remove(home, registry, e);
    if (r != -ENOENT)
        return r;
    ui_warn(e->msg); /* already as requested */
    err_clear(e);
    return 1;
}

static int logout_run(const struct args *a)
{
    return with_registry(a, "Logged out", logout);
}

const struct cmd cmd_registry_logout = {
    .name = "logout",
    .flags = CMD_DESTROYS,
    .summary = "Remove the credentials for a registry",
    .opts = quiet_opts,
    .pos = MAYBE("REGISTRY", REGISTRY_HELP),
    .examples = "  msb registry logout ghcr.io",
    .run = logout_run,
};

/* --- list ----------------------------------------------------------------------------------- */

/* The items are an array of {"registry", "username"}, which is also what --format json prints. */
static void list_one(void *ctx, const char *registry, const char *username)
{
    (void)json_array_append_new(
        ctx, json_pack("{s:s, s:s}", "registry", registry, "username", username));
}

static int registry_items_load(struct items *l, struct err *e)
{
    l->v = json_array();
    int r = l->v ? auth_store_each(l->store->home, list_one, l->v, e) : err_oom(e);
    l->n = json_array_size(l->v);
    return r;
}

static void registry_items_free(struct items *l)
{
    json_decref(l->v);
}

static const char *member(const struct items *l, size_t i, const char *key)
{
    const char *text = json_string_value(json_object_get(json_array_get(l->v, i), key));
    return text ? text : "";
}

static void registry_item_name(const struct items *l, size_t i, struct buf *out)
{
    (void)buf_printf(out, "%s", member(l, i, "registry"));
}

static void registry_item_row(const struct items *l, size_t i, struct table *t)
{
    TABLE_ROW(t, member(l, i, "registry"), member(l, i, "username"));
}

static json_t *registry_json(const struct items *l, size_t i)
{
    return json_incref(json_array_get(l->v, i));
}

static const struct noun registries = {
    .none = "No registries configured.",
    .none_on_stdout = true,
    .headers = {"REGISTRY", "USERNAME"},
    .load = registry_items_load,
    .free = registry_items_free,
    .name = registry_item_name,
    .row = registry_item_row,
    .json = registry_json,
};

static const struct cmd cmd_registry_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List registries with stored credentials",
    .opts = list_opts,
    .examples = "  msb registry ls\n"
                "  msb registry ls --format json",
    .list = &registries,
};

const struct cmd cmd_registry = {
    .name = "registry",
    .group = GROUP_IMAGE,
    .summary = "Manage registry credentials",
    .subs = VERBS(&cmd_registry_login, &cmd_registry_logout, &cmd_registry_list),
    .details =
        "Credentials stored here take precedence over those in Docker's config.json. Mirrors "
        "and certificates are set in registries.json: see msb-registry(1).",
    .examples = "  msb registry login -u me docker.io\n"
                "  msb registry ls",
};
