#include "cli/docker/docker.h"

#include "cli/core/cmd.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "store/background.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static int fail(const struct docker_cmd *d, const struct err *e, int code)
{
    (void)fprintf(stderr, "docker%s%s: %s\n", d->verb & DOCKER_RUN ? "" : " ",
                  d->verb & DOCKER_RUN ? "" : d->name, e->msg);
    for (int i = 0; i < e->hints; i++)
        (void)fprintf(stderr, "  → %s\n", e->hint[i]);
    return code;
}

/* --- a name ---------------------------------------------------------------------------------- */

/* The requested name, if it is free, or a new one. */
static int choose_name(const struct docker_cmd *d, const struct store *s,
                       char name[SPEC_NAME_MAX + 1], struct err *e)
{
    AUTO_SANDBOX struct sandbox taken = SANDBOX_NONE;
    const char *asked = docker_get(d, "name");
    uint32_t random;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return err_sys(e, errno, "cannot generate a name");
    (void)snprintf(name, SPEC_NAME_MAX + 1, "msb-%08x", random);
    if (!asked)
        return 0;
    int r = spec_check_name(asked, e);
    if (r < 0)
        return r;
    (void)snprintf(name, SPEC_NAME_MAX + 1, "%s", asked);
    r = sandbox_open(s, name, &taken, e);
    if (r == -ENOENT) {
        err_clear(e);
        return 0;
    }
    char id[DOCKER_ID_SIZE];
    docker_id(name, taken.spec.created_ns, id);
    return r < 0 ? r
                 : err_set(e, EEXIST,
                           "Conflict. The container name \"/%s\" is already in use by container "
                           "\"%s\". You have to remove (or rename) that container to be able to "
                           "reuse that name.",
                           name, id);
}

/* --- streams --------------------------------------------------------------------------------- */

static void silence(int fd)
{
    AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0)
        (void)dup2(null, fd);
}

int docker_call_silently(const struct strlist *argv)
{
    AUTO_CLOSE int was = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    silence(STDOUT_FILENO);
    int code = docker_call(argv);
    if (was >= 0)
        (void)dup2(was, STDOUT_FILENO);
    return code;
}

/* Input is passed on only if asked for. 0, or the exit code. */
static int attach_streams(const struct docker_cmd *d, struct strlist *argv)
{
    bool tty = docker_has(d, "tty"), in = docker_has(d, "interactive");
    if (tty && in && !isatty(STDIN_FILENO)) {
        (void)fprintf(stderr, "the input device is not a TTY\n");
        return EXIT_FAILED;
    }
    if (!in)
        silence(STDIN_FILENO);
    return strlist_add(argv, tty ? "--tty" : "--no-tty") < 0 ? EXIT_FAILED : 0;
}

/* --- the ID ---------------------------------------------------------------------------------- */

/* Of the sandbox that is made here. --cidfile is created before it, and written once it exists. */
static struct {
    char id[DOCKER_ID_SIZE];
    const char *file;
    int fd; /* -1: none, or written */
} made = {.fd = -1};

static void note_id(const struct sandbox_spec *spec)
{
    docker_id(spec->name, spec->created_ns, made.id);
    if (made.fd >= 0 && write_all(made.fd, made.id, strlen(made.id)) < 0)
        (void)fprintf(stderr, "docker: cannot write %s: %s\n", made.file, strerror(errno));
    close_fd(&made.fd);
}

static int expect_id(const struct docker_cmd *d, struct err *e)
{
    cli_created = note_id;
    made.file = docker_get(d, "cidfile");
    if (!made.file)
        return 0;
    made.fd = open(made.file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (made.fd < 0 && errno == EEXIST)
        return err_set(e, EEXIST,
                       "container ID file found, make sure the other container isn't running or "
                       "delete %s",
                       made.file);
    return made.fd < 0 ? err_sys(e, errno, "failed to create the container ID file %s", made.file)
                       : 0;
}

/* No container, no file. */
static int end_id(int code)
{
    if (made.fd >= 0)
        (void)unlink(made.file);
    close_fd(&made.fd);
    return code;
}

/* --- run and create -------------------------------------------------------------------------- */

/* `words` (ends with NULL), the name, and all options that were translated. */
static int begin_new(const struct docker_cmd *d, const char *const *words, const char *name,
                     struct strlist *argv)
{
    char *option;
    int r = docker_begin(argv, d, words);
    return r < 0 || asprintf(&option, "--name=%s", name) < 0 ? -ENOMEM : strlist_take(argv, option);
}

/* The image by a name, which `names` owns, where an ID was given. */
static int name_image(struct docker_cmd *d, struct strlist *names, struct err *e)
{
    int r = docker_image_names(d->words[0], names, e);
    if (r == 0)
        d->words[0] = names->v[0];
    return r;
}

static int add_command(const struct docker_cmd *d, struct strlist *argv)
{
    int r = strlist_add(argv, d->words[0]);
    if (r == 0 && d->n_words > 1)
        r = strlist_add(argv, "--");
    for (size_t i = 1; r == 0 && i < d->n_words; i++)
        r = strlist_add(argv, d->words[i]);
    return r;
}

/* msb's own failures are Docker's 125; the command's exit codes are passed on. */
static int run_code(int code)
{
    return code >= EXIT_FAILED && code <= 3 && ui_failed() ? DOCKER_FAILED : code;
}

/* A container without --rm also stops with its command. (msb's --rm may take a path: not before the
 * image.) */
static int run_attached(struct docker_cmd *d, const char *name, bool passing)
{
    AUTO_STRLIST struct strlist argv = {0};
    const char *words[] = {"run", passing ? "--rm" : "--stop-when-done", "--quiet", NULL};
    if (begin_new(d, words, name, &argv) < 0)
        return DOCKER_FAILED;
    int code = attach_streams(d, &argv);
    if (code)
        return code;
    return add_command(d, &argv) < 0 ? DOCKER_FAILED : run_code(docker_call(&argv));
}

static int run_detached(struct docker_cmd *d, const char *name, bool passing)
{
    AUTO_STRLIST struct strlist argv = {0};
    const char *words[] = {"run", passing ? "--rm" : "--stop-when-done", "--quiet", "--detach",
                           NULL};
    if (begin_new(d, words, name, &argv) < 0 || add_command(d, &argv) < 0)
        return DOCKER_FAILED;
    int code = docker_call_silently(&argv);
    return code == EXIT_OK ? ui_print_line(made.id) : run_code(code);
}

int docker_run(struct docker_cmd *d)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_STRLIST struct strlist image = {0};
    struct err e = {0};
    char name[SPEC_NAME_MAX + 1];
    bool passing = docker_has(d, "rm");
    int r = store_open(&s, &e);
    if (r == 0)
        r = choose_name(d, &s, name, &e);
    if (r == 0)
        r = name_image(d, &image, &e);
    if (r == 0)
        r = expect_id(d, &e);
    if (r < 0)
        return fail(d, &e, DOCKER_FAILED);
    return end_id(docker_has(d, "detach") ? run_detached(d, name, passing)
                                          : run_attached(d, name, passing));
}

/* Boots it once, so that everything about it has been checked; its command waits for `start`. */
int docker_create(struct docker_cmd *d)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_STRLIST struct strlist argv = {0}, stop = {0}, image = {0};
    static const char *const words[] = {"create", "--quiet", NULL};
    struct err e = {0};
    char name[SPEC_NAME_MAX + 1];
    int r = store_open(&s, &e);
    if (r == 0)
        r = choose_name(d, &s, name, &e);
    if (r == 0)
        r = name_image(d, &image, &e);
    if (r == 0 && begin_new(d, words, name, &argv) < 0)
        r = err_oom(&e);
    for (size_t i = 1; r == 0 && i < d->n_words; i++) {
        char *word;
        if (asprintf(&word, "--cmd=%s", d->words[i]) < 0 || strlist_take(&argv, word) < 0)
            r = err_oom(&e);
    }
    if (r == 0 && (strlist_add(&argv, d->words[0]) < 0 || strlist_add(&stop, "stop") < 0 ||
                   strlist_add(&stop, "--quiet") < 0 || strlist_add(&stop, name) < 0))
        r = err_oom(&e);
    if (r == 0)
        r = expect_id(d, &e);
    if (r < 0)
        return fail(d, &e, EXIT_FAILED);
    int code = end_id(docker_call_silently(&argv));
    if (code == EXIT_OK)
        code = docker_call_silently(&stop);
    return code == EXIT_OK ? ui_print_line(made.id) : EXIT_FAILED;
}

/* --- start and exec -------------------------------------------------------------------------- */

int docker_start_one(const struct sandbox *sb)
{
    AUTO_STRLIST struct strlist argv = {0};
    bool payload = sb->spec.entrypoint.n > 0 || sb->spec.cmd.n > 0;
    if (docker_is_running(sb))
        return EXIT_OK;
    if (strlist_add(&argv, payload ? "exec" : "start") < 0 || strlist_add(&argv, "--quiet") < 0 ||
        (payload && strlist_add(&argv, "--detach") < 0) || strlist_add(&argv, sb->spec.name) < 0)
        return EXIT_FAILED;
    return docker_call(&argv);
}

/* The container's own command, if it was left running and can be attached to. Others may run as
 * well, of `docker exec -d`. */
static int find_running(const struct docker_cmd *d, const struct sandbox *sb, char id[16],
                        struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    const struct strlist *own[] = {&sb->spec.entrypoint, &sb->spec.cmd};
    struct background b;
    char text[BACKGROUND_TEXT_MAX + 1] = "";
    size_t at = 0;
    int r = store_open(&s, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        for (size_t k = 0; k < own[i]->n; k++)
            background_add_word(text, own[i]->v[k], strlen(own[i]->v[k]));
    background_load(&s, sb, &b);
    while (at < b.n && strcmp(b.v[at].text, text) != 0)
        at++;
    if (at == b.n || b.v[at].ended)
        return err_set(e, EBUSY,
                       "cannot attach to container %s: its command has ended, or another client "
                       "runs it",
                       d->words[0]);
    (void)snprintf(id, 16, "--id=%u", b.v[at].id);
    return 0;
}

/* Attached to one, as `docker start -ai`. */
int docker_start(struct docker_cmd *d)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_STRLIST struct strlist argv = {0};
    char id[16];
    bool in = docker_has(d, "interactive");
    const char *attach[] = {"attach", id, in ? NULL : "--no-stdin", NULL};
    static const char *const exec[] = {"exec", "--quiet", "--no-tty", NULL};
    struct err e = {0};
    int r = docker_open_first(d, &sb, &e);
    bool running = r == 0 && docker_is_running(&sb);
    if (running)
        r = find_running(d, &sb, id, &e);
    if (r < 0)
        return docker_daemon_fail(&e);
    if (!in)
        silence(STDIN_FILENO);
    if (docker_begin(&argv, d, running ? attach : exec) < 0 || strlist_add(&argv, sb.spec.name) < 0)
        return EXIT_FAILED;
    return docker_call(&argv);
}

int docker_exec(struct docker_cmd *d)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    AUTO_STRLIST struct strlist argv = {0};
    bool detach = docker_has(d, "detach");
    const char *words[] = {"exec", "--quiet", detach ? "--detach" : NULL, NULL};
    struct err e = {0};
    int r = docker_open_first(d, &sb, &e);
    if (r == 0 && !docker_is_running(&sb))
        r = err_set(&e, EBUSY, "container %s is not running", d->words[0]);
    if (r < 0)
        return docker_daemon_fail(&e);
    if (docker_begin(&argv, d, words) < 0)
        return EXIT_FAILED;
    int code = detach ? 0 : attach_streams(d, &argv);
    if (code)
        return code;
    r = strlist_add(&argv, sb.spec.name);
    if (r == 0)
        r = strlist_add(&argv, "--");
    for (size_t i = 1; r == 0 && i < d->n_words; i++)
        r = strlist_add(&argv, d->words[i]);
    return r < 0 ? EXIT_FAILED : docker_call(&argv);
}
