#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/env.h"
#include "cli/options/session.h"
#include "sandbox/lifecycle.h"
#include "store/secret.h"

static int parse_request(const struct args *a, struct session_request *q, struct err *e)
{
    int r = session_request_parse(a, q, e);
    if (r == 0)
        r = env_options(a, &q->env, e);
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

/* Without a command the sandbox's default is run, which is in its spec, or (`msb shell`) its shell.
 * 1 = continue. */
static int complete_request(const struct store *s, const struct args *a, struct session_request *q,
                            struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    if (q->argv.n > 0)
        return 1;
    int r = sandbox_open(s, a->pos[0], &sb, e);
    if (r < 0)
        return r;
    if (!args_has(a, "shell"))
        return session_default_command(q, &sb.spec, e);
    return strlist_add(&q->argv, sb.spec.shell ? sb.spec.shell : "/bin/sh") < 0 ? err_oom(e) : 1;
}

static int exec_in(const struct store *s, const char *name, const struct session_request *q)
{
    struct err e = {0};
    bool started = false, detached = false;
    int code = session_execute(s, name, q, &started, &detached);
    if (q->detach && code == EXIT_OK)
        ui_success("Started", name);
    /* A sandbox that was started for a background command stops by itself when that ends. */
    if (started && !q->detach && sandbox_release(s, name, ui_warn, &e) < 0) {
        ui_error(&e);
        code = code ? code : EXIT_FAILED;
    }
    return code;
}

static int exec_run(const struct args *a)
{
    struct session_request q = {0};
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    const char *name = a->pos[0];
    int r = parse_request(a, &q, &e);
    if (r == 0)
        r = store_open(&s, &e);
    if (r == 0)
        r = complete_request(&s, a, &q, &e);
    int code = r < 0 ? ui_fail(&e) : r == 0 ? EXIT_OK : exec_in(&s, name, &q);
    session_request_free(&q);
    return code;
}

static const struct opt rare_opts[] = {
    {"shell", 0, NULL, "Run the sandbox's shell instead of the image's command", OPT_HIDDEN},
    ENV_FILE_OPTION,
    {"rlimit", 0, "NAME=SOFT[:HARD]", "Set a resource limit: nofile=1024, nproc=64", OPT_REPEAT,
     .alias = "ulimit"},
    {"stream", 0, NULL, "Pass stdin and output through unchanged, without a terminal",
     .conflicts = "tty"},
    {0},
};
static const struct opt_group rare_group = {"More", rare_opts};

const struct cmd cmd_exec = {
    .name = "exec",
    .group = GROUP_SANDBOX,
    .summary = "Run a command in a sandbox",
    .opts = OPTIONS(
        {"env", 'e', "KEY[=VALUE]", "Set an environment variable; KEY alone copies yours",
         OPT_REPEAT},
        {"secret-env", 0, "NAME", "Set a variable to a secret (see 'msb secret')", OPT_REPEAT},
        {"workdir", 'w', "DIR", "Working directory (default: the sandbox's)"},
        {"user", 'u', "USER[:GROUP]", "User to run as (default: the sandbox's)"},
        {"detach", 'd', NULL, "Run in the background; 'msb logs' has its output"},
        {"quiet", 'q', NULL, "Print only the command's output"}),
    .groups = GROUPS(&session_group, &rare_group),
    .pos = ONE("NAME", "Sandbox to run it in"),
    .command_help = "Command to run (default: the image's, or a shell)",
    .details = "A stopped sandbox is started for the command and stopped again afterwards. msb "
               "exits with the command's exit code: 128+N if signal N killed it, 127 if it was not "
               "found, 126 if it could not be executed, 124 if it timed out.",
    .examples = "  msb exec web -- ls -l /srv\n"
                "  msb exec --timeout 30s -e CI=1 web -- make test\n"
                "  msb exec -d web -- ./worker         (in the background)\n"
                "  msb shell web                       (its shell)\n"
                "  echo hello | msb exec web -- tr a-z A-Z",
    .run = exec_run,
};
