#include "cli/sandbox_opts.h"
#include "cli/session_opts.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"
#include "store/secret.h"

#include <errno.h>

static int parse_request(const struct args *a, struct session_request *q, struct err *e)
{
    int r = session_request_parse(a, q, e);
    struct strlist env = {0};
    if (r == 0 && args_list(a, "env", &env) < 0)
        r = err_oom(e);
    for (size_t i = 0; r == 0 && i < env.n; i++)
        r = env_option(&q->env, env.v[i], e);
    strlist_free(&env);
    if (r == 0 && args_list(a, "secret-env", &q->secrets) < 0)
        r = err_oom(e);
    for (size_t i = 0; r == 0 && i < q->secrets.n; i++)
        r = secret_check_name(q->secrets.v[i], e);
    q->cwd = args_get(a, "workdir");
    q->user = args_get(a, "user");
    if (r == 0 && q->cwd && q->cwd[0] != '/')
        r = args_bad_value(a, "workdir", q->cwd, "expected an absolute path", e);
    if (r == 0 && q->user && !*q->user)
        r = args_bad_value(a, "user", q->user, "expected NAME or UID", e);
    return r;
}

/* Without a command the sandbox's own is run, which only its spec knows. 1 = go on. */
static int complete_request(const struct store *s, const char *name, struct session_request *q,
                            struct err *e)
{
    struct sandbox sb;
    if (q->argv.n > 0)
        return 1;
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0)
        return r;
    r = session_default_command(q, &sb.spec, e);
    sandbox_close(&sb);
    return r;
}

static int exec_in(const struct store *s, const char *name, const struct session_request *q)
{
    struct err e = {0};
    bool started = false, detached;
    int code = session_execute(s, name, q, &started, &detached);
    if (started && sandbox_release(s, name, ui_warn, &e) < 0) {
        ui_error(&e);
        code = code ? code : EXIT_FAILED;
    }
    return code;
}

static int exec_run(const struct args *a)
{
    struct session_request q = {0};
    struct store s = {.home_fd = -1, .sandboxes_fd = -1, .locks_fd = -1};
    struct err e = {0};
    const char *name = a->pos[0];
    ui_set_quiet(args_has(a, "quiet"));
    int r = parse_request(a, &q, &e);
    if (r == 0)
        r = store_open(&s, &e);
    if (r == 0)
        r = complete_request(&s, name, &q, &e);
    int code = r < 0 ? ui_fail(&e) : r == 0 ? EXIT_OK : exec_in(&s, name, &q);
    session_request_free(&q);
    store_close(&s);
    return code;
}

static const struct opt exec_opts[] = {
    {.name = "env",
     .letter = 'e',
     .value = "KEY[=VALUE]",
     .help = "Set a variable for the command; KEY alone passes on your own",
     .flags = OPT_REPEAT},
    {.name = "secret-env",
     .value = "NAME",
     .help = "Give it a secret in its environment, besides those of the sandbox (see msb secret)",
     .flags = OPT_REPEAT},
    {.name = "workdir",
     .letter = 'w',
     .value = "DIR",
     .help = "Directory in which the command starts (default: the sandbox's)"},
    {.name = "user",
     .letter = 'u',
     .value = "USER[:GROUP]",
     .help = "User who runs it (default: the sandbox's)"},
    {.name = "rlimit",
     .value = "NAME=SOFT[:HARD]",
     .help = "Limit a resource: nofile=1024, nproc=64",
     .flags = OPT_REPEAT},
    {.name = "quiet", .letter = 'q', .help = "Print nothing but what the command prints"},
    {.name = "stream",
     .help = "Pass stdin and output on as they come, without a terminal in between",
     .conflicts = "tty"},
    {0},
};

const struct cmd cmd_exec = {
    .name = "exec",
    .group = GROUP_SANDBOX,
    .summary = "Run a command in a sandbox",
    .opts = {exec_opts, session_opts},
    .pos = {.name = "NAME", .help = "Sandbox to run it in", .required = true},
    .command_help = "Command and its arguments (default: the image's, else a shell)",
    .details =
        "A stopped sandbox is started for the command and stopped again afterwards.\n"
        "msb exits with the command's exit code: 128+N if signal N killed it, 127 if it was\n"
        "not found, 126 if it could not be executed, 124 if it ran out of time.",
    .examples = "  msb exec web -- ls -l /srv\n"
                "  msb exec web                        (a shell)\n"
                "  echo hello | msb exec web -- tr a-z A-Z\n"
                "  msb exec --timeout 30s -e CI=1 web -- make test",
    .run = exec_run,
};
