#include "cli/docker/docker.h"

#include "cli/core/args.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "image/oci/reference.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int docker_begin(struct strlist *argv, const struct docker_cmd *d, const char *const *words)
{
    int r = 0;
    for (; r == 0 && *words; words++)
        r = strlist_add(argv, *words);
    return r < 0 ? r : strlist_copy(argv, &d->opts);
}

/* The verb may change the array it gets, but not the words. */
int docker_call(const struct strlist *argv)
{
    AUTO_FREE char **copy = calloc(argv->n + 2, sizeof(char *));
    if (!copy)
        return EXIT_FAILED;
    copy[0] = (char *)(uintptr_t) "msb";
    memcpy(copy + 1, argv->v, argv->n * sizeof(char *));
    return cli_run((int)argv->n + 1, copy);
}

int docker_daemon_fail(const struct err *e)
{
    (void)fprintf(stderr, "Error response from daemon: %s\n", e->msg);
    return EXIT_FAILED;
}

/* --- verbs for each container ---------------------------------------------------------------- */

/* `words` with the translated options and the sandbox's name. */
static int call_on(const struct docker_cmd *d, const char *const *words, const char *name)
{
    AUTO_STRLIST struct strlist argv = {0};
    if (docker_begin(&argv, d, words) < 0 || strlist_add(&argv, name) < 0)
        return EXIT_FAILED;
    return docker_call(&argv);
}

static int stop_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    static const char *const words[] = {"stop", "--quiet", NULL};
    return call_on(d, words, sb->spec.name);
}

static int restart_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    struct sandbox stopped = {.spec = sb->spec};
    int code = stop_one(d, sb);
    return code ? code : docker_start_one(&stopped);
}

static int kill_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    static const char *const words[] = {"stop", "--quiet", "--force", NULL};
    struct err e = {0};
    if (!docker_is_running(sb)) {
        (void)err_set(&e, EBUSY, "cannot kill container: %s: container is not running",
                      sb->spec.name);
        return docker_daemon_fail(&e);
    }
    return d->verb == DOCKER_STOP ? stop_one(d, sb) : call_on(d, words, sb->spec.name);
}

static int rm_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    static const char *const words[] = {"remove", "--quiet", NULL};
    struct err e = {0};
    if (docker_is_running(sb) && !strlist_has(&d->opts, "--force")) {
        (void)err_set(&e, EBUSY,
                      "cannot remove container \"/%s\": container is running: stop the container "
                      "before removing or force remove",
                      sb->spec.name);
        return docker_daemon_fail(&e);
    }
    return call_on(d, words, sb->spec.name);
}

static int start_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    return docker_start_one(sb);
}

/* Waits until the container has ended, not only its command. */
static int wait_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    static const char *const words[] = {"wait", NULL};
    AUTO_STORE struct store s = STORE_NONE;
    int code = call_on(d, words, sb->spec.name);
    if (code == EXIT_OK && store_open(&s, NULL) == 0)
        (void)sandbox_release(&s, sb->spec.name, NULL, NULL);
    return code;
}

static int logs_one(const struct docker_cmd *d, const struct sandbox *sb)
{
    static const char *const words[] = {"logs", NULL};
    return call_on(d, words, sb->spec.name);
}

/* --- the others ------------------------------------------------------------------------------ */

/* CONTAINER:PATH, with the sandbox's name in place of whatever names it. */
static int add_side(const struct store *s, const char *word, struct strlist *argv, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    const char *colon = strchr(word, ':');
    if (!colon || strchr("./-", word[0]))
        return strlist_add(argv, word) < 0 ? err_oom(e) : 0;
    AUTO_FREE char *container = strndup(word, (size_t)(colon - word));
    int r = container ? docker_open(s, container, &sb, e) : err_oom(e);
    char *text;
    if (r < 0)
        return r;
    bool absolute = colon[1] == '/'; /* a relative path is below the root */
    if (asprintf(&text, "%s:%s%s", sb.spec.name, absolute ? "" : "/", colon + 1) < 0 ||
        strlist_take(argv, text) < 0)
        return err_oom(e);
    return 0;
}

static int docker_cp(struct docker_cmd *d)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_STRLIST struct strlist argv = {0};
    static const char *const words[] = {"copy", "--quiet", NULL};
    struct err e = {0};
    int r = docker_begin(&argv, d, words) < 0 ? err_oom(&e) : store_open(&s, &e);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = add_side(&s, d->words[i], &argv, &e);
    return r < 0 ? docker_daemon_fail(&e) : docker_call(&argv);
}

/* In full. */
static int print_reference(const char *word)
{
    AUTO_REFERENCE struct reference ref = {0};
    AUTO_FREE char *full = reference_parse(word, &ref, NULL) == 0 ? reference_full(&ref) : NULL;
    return ui_print_line(full ? full : word);
}

/* Prints what was requested, as Docker's last line does. */
static int docker_pull(struct docker_cmd *d)
{
    const char *words[] = {"pull", docker_has(d, "quiet") ? "--quiet" : NULL, NULL};
    int code = call_on(d, words, d->words[0]);
    return code ? code : print_reference(d->words[0]);
}

/* Runs the verb with the same arguments, the first of which may be IDs of images. */
static int pass_words(struct docker_cmd *d, const char *const *words, size_t images)
{
    AUTO_STRLIST struct strlist argv = {0};
    struct err e = {0};
    int r = docker_begin(&argv, d, words) < 0 ? err_oom(&e) : 0;
    for (size_t i = 0; r == 0 && i < d->n_words; i++) {
        AUTO_STRLIST struct strlist names = {0};
        r = i < images ? docker_image_names(d->words[i], &names, &e) : 0;
        if (r == 0 && strlist_add(&argv, i < images ? names.v[0] : d->words[i]) < 0)
            r = err_oom(&e);
    }
    return r < 0 ? docker_daemon_fail(&e) : docker_call(&argv);
}

/* The names to remove for a word: by ID, all of the image's, which takes --force if they are
 * several. */
static int add_names(const struct docker_cmd *d, const char *word, struct strlist *all,
                     struct err *e)
{
    AUTO_STRLIST struct strlist names = {0};
    int r = docker_image_names(word, &names, e);
    if (r == 0 && names.n > 1 && !strlist_has(&d->opts, "--force"))
        r = err_set(e, EBUSY,
                    "conflict: unable to delete %s (must be forced) - image is referenced in "
                    "multiple repositories",
                    word);
    for (size_t i = 0; r == 0 && i < names.n; i++)
        if (!strlist_has(all, names.v[i]) && strlist_add(all, names.v[i]) < 0)
            r = err_oom(e);
    return r;
}

static int docker_rmi(struct docker_cmd *d)
{
    AUTO_STRLIST struct strlist argv = {0}, all = {0};
    static const char *const words[] = {"image", "remove", NULL};
    int code = EXIT_OK;
    for (size_t i = 0; i < d->n_words; i++) {
        struct err e = {0};
        if (add_names(d, d->words[i], &all, &e) < 0)
            code = docker_daemon_fail(&e);
    }
    if (docker_begin(&argv, d, words) < 0 || strlist_copy(&argv, &all) < 0)
        return EXIT_FAILED;
    int removed = all.n ? docker_call(&argv) : EXIT_OK;
    return removed ? removed : code;
}

static int docker_load(struct docker_cmd *d)
{
    static const char *const words[] = {"load", "--print=Loaded image: ", NULL};
    return pass_words(d, words, 0);
}

static int docker_save(struct docker_cmd *d)
{
    static const char *const words[] = {"save", NULL};
    return pass_words(d, words, d->n_words);
}

static int docker_tag(struct docker_cmd *d)
{
    static const char *const words[] = {"tag", "--quiet", NULL};
    return pass_words(d, words, 1);
}

/* Prints the image's ID. */
static int docker_commit(struct docker_cmd *d)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_STRLIST struct strlist argv = {0};
    static const char *const words[] = {"commit", "--quiet", NULL};
    struct err e = {0};
    if (docker_open_first(d, &sb, &e) < 0)
        return docker_daemon_fail(&e);
    int r = docker_begin(&argv, d, words);
    if (r == 0)
        r = strlist_add(&argv, sb.spec.name);
    for (size_t i = 1; r == 0 && i < d->n_words; i++)
        r = strlist_add(&argv, d->words[i]);
    int code = r < 0 ? EXIT_FAILED : docker_call_silently(&argv);
    return code ? code : docker_print_image_id(d->words[1]);
}

/* Prints the digest, or as `pull` does with --quiet. */
static int docker_push(struct docker_cmd *d)
{
    AUTO_STRLIST struct strlist argv = {0};
    bool quiet = docker_has(d, "quiet");
    if (strlist_add(&argv, "push") < 0 || (quiet && strlist_add(&argv, "--quiet") < 0) ||
        strlist_add(&argv, d->words[0]) < 0)
        return EXIT_FAILED;
    int code = quiet ? docker_call_silently(&argv) : docker_call(&argv);
    return code || !quiet ? code : print_reference(d->words[0]);
}

/* Without a server: Docker Hub. */
static int log_in_or_out(struct docker_cmd *d, const char *verb, const char *done)
{
    const char *words[] = {"registry", verb, "--quiet", NULL};
    int code = call_on(d, words, d->n_words ? d->words[0] : "docker.io");
    return code ? code : ui_print_line(done);
}

static int docker_login(struct docker_cmd *d)
{
    return log_in_or_out(d, "login", "Login Succeeded");
}

static int docker_logout(struct docker_cmd *d)
{
    return log_in_or_out(d, "logout", "Removing login credentials");
}

/* --- subcommands ----------------------------------------------------------------------------- */

enum { FIRST = 1, ECHO = 2, MISSING_OK = 4, AT_MOST_ONE = 8 };

static const struct subcommand {
    const char *name, *container, *image; /* as `docker NAME`, `docker container`, `docker image` */
    unsigned verb;
    size_t least;
    unsigned flags; /* options end with the first word; each argument is printed when done; ... */
    int (*fn)(struct docker_cmd *d);
    int (*each)(const struct docker_cmd *d, const struct sandbox *sb);
} subcommands[] = {
    {"version", NULL, NULL, DOCKER_SYSTEM, 0, 0, docker_version, NULL},
    {"info", NULL, NULL, DOCKER_SYSTEM, 0, 0, docker_info, NULL},
    {"run", "run", NULL, DOCKER_RUN, 1, FIRST, docker_run, NULL},
    {"create", "create", NULL, DOCKER_CREATE, 1, FIRST, docker_create, NULL},
    {"exec", "exec", NULL, DOCKER_EXEC, 2, FIRST, docker_exec, NULL},
    {"start", "start", NULL, DOCKER_START, 1, ECHO, docker_start, start_one},
    {"stop", "stop", NULL, DOCKER_STOP, 1, ECHO, NULL, stop_one},
    {"restart", "restart", NULL, DOCKER_RESTART, 1, ECHO, NULL, restart_one},
    {"kill", "kill", NULL, DOCKER_KILL, 1, ECHO, NULL, kill_one},
    {"rm", "rm", NULL, DOCKER_RM, 1, ECHO | MISSING_OK, NULL, rm_one},
    {"wait", "wait", NULL, DOCKER_WAIT, 1, 0, NULL, wait_one},
    {"logs", "logs", NULL, DOCKER_LOGS, 1, AT_MOST_ONE, NULL, logs_one},
    {"ps", "ls", NULL, DOCKER_PS, 0, 0, docker_ps, NULL},
    {NULL, "ps", NULL, DOCKER_PS, 0, 0, docker_ps, NULL},
    {NULL, "list", NULL, DOCKER_PS, 0, 0, docker_ps, NULL},
    {"inspect", "inspect", "inspect", DOCKER_INSPECT, 1, 0, docker_inspect, NULL},
    {"cp", "cp", NULL, DOCKER_CP, 2, 0, docker_cp, NULL},
    {"pull", NULL, "pull", DOCKER_PULL, 1, AT_MOST_ONE, docker_pull, NULL},
    {"images", NULL, "ls", DOCKER_IMAGES, 0, AT_MOST_ONE, docker_images, NULL},
    {"rmi", NULL, "rm", DOCKER_RMI, 1, 0, docker_rmi, NULL},
    {"load", NULL, "load", DOCKER_LOAD, 0, 0, docker_load, NULL},
    {"save", NULL, "save", DOCKER_SAVE, 1, 0, docker_save, NULL},
    {"commit", "commit", NULL, DOCKER_COMMIT, 2, 0, docker_commit, NULL},
    {"tag", NULL, "tag", DOCKER_TAG, 2, 0, docker_tag, NULL},
    {"push", NULL, "push", DOCKER_PUSH, 1, AT_MOST_ONE, docker_push, NULL},
    {"login", NULL, NULL, DOCKER_LOGIN, 0, AT_MOST_ONE, docker_login, NULL},
    {"logout", NULL, NULL, DOCKER_LOGOUT, 0, AT_MOST_ONE, docker_logout, NULL},
};

/* Handles each argument in turn; a failure does not prevent the rest. */
static int for_each(struct docker_cmd *d, const struct subcommand *c)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    int code = EXIT_OK;
    if (store_open(&s, &e) < 0)
        return docker_daemon_fail(&e);
    for (size_t i = 0; i < d->n_words; i++) {
        AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
        int r = docker_open(&s, d->words[i], &sb, &e);
        int one = r < 0 ? docker_daemon_fail(&e) : c->each(d, &sb);
        if (r == -ENOENT && (c->flags & MISSING_OK) && strlist_has(&d->opts, "--force"))
            one = EXIT_OK; /* it is gone, as requested */
        else if (one == EXIT_OK && (c->flags & ECHO))
            (void)ui_print_line(d->words[i]);
        code = one ? one : code;
        err_clear(&e);
    }
    return code;
}

static int run_subcommand(const struct subcommand *c, const char *name, const char *group,
                          char **argv, size_t n)
{
    struct docker_cmd d = {.name = name,
                           .verb = c->verb,
                           .image = strcmp(group, "image") == 0,
                           .container = strcmp(group, "container") == 0};
    struct err e = {0};
    int code = DOCKER_FAILED;
    int r = docker_parse(&d, argv, n, c->flags & FIRST, &e);
    if (r == 0 && d.n_words < c->least)
        r = err_set(&e, EINVAL, "\"docker %s\" requires at least %zu argument%s", name, c->least,
                    c->least == 1 ? "" : "s");
    if (r == 0 && (c->flags & AT_MOST_ONE) && d.n_words > 1)
        r = err_set(&e, EINVAL, "\"docker %s\" takes one argument", name);
    bool attached = docker_has(&d, "attach") || docker_has(&d, "interactive");
    if (r < 0)
        (void)fprintf(stderr, "docker: %s\n", e.msg);
    else
        code = c->each && !(c->fn && attached) ? for_each(&d, c) : c->fn(&d);
    docker_cmd_free(&d);
    return code;
}

static int refuse(const char *group, const char *word)
{
    (void)fprintf(stderr,
                  "docker: '%s%s%s' is not supported by msb: see docs/docker.md, or use 'msb' "
                  "itself\n",
                  group, *group ? " " : "", word);
    return DOCKER_FAILED;
}

static int docker_command(char **argv, size_t n)
{
    bool container = n > 1 && strcmp(argv[0], "container") == 0;
    bool image = n > 1 && strcmp(argv[0], "image") == 0;
    const char *group = container ? "container" : image ? "image" : "";
    size_t at = container || image;
    for (size_t i = 0; i < ARRAY_LEN(subcommands); i++) {
        const struct subcommand *c = &subcommands[i];
        const char *name = container ? c->container : image ? c->image : c->name;
        if (name && strcmp(name, argv[at]) == 0)
            return run_subcommand(c, name, group, argv + at + 1, n - at - 1);
    }
    return refuse(group, argv[at]);
}

static int docker_main(const struct args *a)
{
    if (a->n_command == 0)
        return refuse("", "without a command");
    const char *word = a->command[0];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-v") == 0)
        return ui_print_line("Docker version " DOCKER_VERSION ", build msb-" MSB_VERSION);
    return docker_command(a->command, a->n_command);
}

const struct cmd cmd_docker = {
    .name = "docker",
    .group = GROUP_OTHER,
    .flags = CMD_RAW,
    .summary = "Accept Docker's command line",
    .pos = SOME("COMMAND", "Docker's subcommand, with its options and arguments"),
    .details =
        "The part of Docker's command line that programs use, for sandboxes: version, info, run, "
        "create, start, restart, exec, stop, kill, rm, ps, inspect, logs, cp, wait, pull, images, "
        "rmi, load, save, commit, tag, push, login, logout, and the groups container and image. "
        "Options have Docker's names and "
        "values; what msb cannot do is refused with exit code 125. A program called docker that "
        "is a link to msb is the same as 'msb docker'.\n\nA container is a sandbox. "
        "Refer to it by its name, by its ID of 64 digits, or by the beginning of that. It ends "
        "with its command, as in Docker; until then 'msb exec' and all other verbs work on it. "
        "docs/docker.md lists what is supported and what differs.",
    .examples = "  msb docker run --rm -it alpine sh\n"
                "  msb docker run -d --name web -p 8080:80 nginx\n"
                "  msb docker ps -a --format '{{.ID}} {{.Names}} {{.Status}}'\n"
                "  ln -s $(command -v msb) ~/bin/docker",
    .run = docker_main,
};
