/* run: create (or reuse) a sandbox, run a command in it, stop it again. */
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/sandbox.h"
#include "cli/options/session.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct run {
    const struct args *args;
    struct store store;
    struct sandbox_request sandbox;
    struct session_request session;
    bool created; /* this call created the sandbox, and so takes it down */
    bool passing; /* it is removed when its command has ended */
};

/* A Ctrl-C between the creation and the command must not leave the sandbox behind. */
static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    interrupted = sig;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        struct sigaction old, sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &sa, NULL);
    }
}

/* --- the sandbox ---------------------------------------------------------------------------- */

/* Whether the command line specifies more about a sandbox than its name and its image. */
static bool asks_for_more(const struct args *a, const struct sandbox_spec *has)
{
    static const struct opt_group *const groups[] = {SANDBOX_GROUPS};
    if (a->n_pos && strcmp(a->pos[0], has->image) != 0)
        return true;
    for (size_t i = 0; i < a->n_opts; i++)
        for (size_t g = 0; g < ARRAY_LEN(groups); g++)
            for (const struct opt *o = groups[g]->opts; o->name; o++)
                if (o == a->opts[i].opt && strcmp(o->name, "name") != 0)
                    return true;
    return false;
}

/* 1 = there is one with that name, which is used; its spec says what to run. */
static int find_existing(struct run *r, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    if (!r->sandbox.named || r->sandbox.create.replace)
        return 0;
    int x = sandbox_open(&r->store, r->sandbox.spec.name, &sb, e);
    if (x == -ENOENT) {
        err_clear(e);
        return 0;
    }
    if (x < 0)
        return x;
    if (asks_for_more(r->args, &sb.spec)) {
        char text[SPEC_NAME_MAX + 96];
        (void)snprintf(text, sizeof(text),
                       "sandbox '%s' already exists; creation flags ignored (use --replace to "
                       "recreate)",
                       sb.spec.name);
        ui_warn(text);
    }
    spec_free(&r->sandbox.spec);
    r->sandbox.spec = sb.spec;
    spec_init(&sb.spec);
    return 1;
}

/* What to run: the entrypoint with the command after "--", or with the image's own. 1 = there is
 * something to run. */
static int choose_command(struct run *r, struct err *e)
{
    if (r->args->command) {
        AUTO_STRLIST struct strlist argv = {0};
        if (strlist_copy(&argv, &r->sandbox.spec.entrypoint) < 0 ||
            strlist_copy(&argv, &r->session.argv) < 0)
            return err_oom(e);
        struct strlist given = r->session.argv;
        r->session.argv = argv;
        argv = given;
        return 1;
    }
    if (r->session.detach && r->sandbox.spec.entrypoint.n == 0 && r->sandbox.spec.cmd.n == 0) {
        err_set(e, EINVAL,
                "nothing to run in the background: no command given, and the image has none");
        err_hint(e, "use 'msb create' for a sandbox that waits for commands");
        return -EINVAL;
    }
    return session_default_command(&r->session, &r->sandbox.spec, e);
}

static int create_sandbox(struct run *r, struct err *e)
{
    struct sandbox_spec *spec = &r->sandbox.spec;
    struct spinner spin;
    uint64_t t0 = now_ns();
    /* If a snapshot has to be copied back, the sandbox is removed only after that. */
    r->passing = !r->sandbox.named || r->sandbox.passing;
    spec->ephemeral = r->passing && !spec_has_snapshot(spec);
    r->sandbox.create.stop_when_idle =
        !spec->ephemeral && (r->passing || args_has(r->args, "stop-when-done"));
    net_note_allowlist(&spec->net);
    catch_signals();
    spinner_start(&spin, "Creating", spec->name);
    int x = sandbox_create(&r->store, spec, &r->sandbox.create, ui_warn, e);
    spinner_stop(&spin);
    close_fd(&r->sandbox.image_lock); /* the spec holds it now; a command may take days */
    r->created = x == 0;
    if (r->created && cli_created)
        cli_created(spec);
    diag_took("creating the sandbox", t0);
    return x;
}

/* An ephemeral sandbox that keeps nothing need not finish writing. */
static void take_down(struct run *r)
{
    const struct sandbox_spec *spec = &r->sandbox.spec;
    struct err e = {0};
    uint64_t grace = spec->ephemeral ? spec_last_writes_ms(spec) : STOP_GRACE_DEFAULT_MS;
    int x = grace ? sandbox_stop(&r->store, spec->name, grace, false, ui_warn, &e)
                  : sandbox_remove(&r->store, spec->name, true, ui_warn, &e);
    if (x == 0 && r->passing && !spec->ephemeral)
        x = sandbox_remove(&r->store, spec->name, false, ui_warn, &e);
    if (x < 0 && !(spec->ephemeral && x == -ENOENT)) /* it had ended by itself */
        ui_error(&e);
}

/* --- the command ---------------------------------------------------------------------------- */

static int run_command(struct run *r)
{
    struct err e = {0};
    bool started = false, detached = false;
    const char *name = r->sandbox.spec.name;
    int code = interrupted ? 128 + (int)interrupted
                           : session_execute(&r->store, name, &r->session, &started, &detached);
    bool leave = (r->session.detach || detached) && code == EXIT_OK;
    if (leave && r->passing && !r->sandbox.spec.ephemeral)
        ui_warn("the sandbox is kept after its command until its workspace is synced: `msb rm` "
                "syncs and removes it");
    if (r->created && !leave)
        take_down(r);
    else if (started && !leave && sandbox_release(&r->store, name, ui_warn, &e) < 0)
        ui_error(&e);
    return r->session.detach && code == EXIT_OK ? ui_print_line(name) : code;
}

static int run_all(struct run *r)
{
    struct err e = {0};
    int x = find_existing(r, &e);
    bool exists = x == 1;
    if (x == 0)
        x = sandbox_request_resolve(&r->sandbox, r->args, &r->store, &e);
    if (x < 0)
        return sandbox_request_fail(&r->sandbox, &e);
    x = choose_command(r, &e);
    if (x == 0)
        return EXIT_OK;
    if (x > 0 && !exists)
        x = create_sandbox(r, &e);
    return x < 0 ? ui_fail(&e) : run_command(r);
}

static int run_run(const struct args *a)
{
    struct run r = {.args = a, .store = STORE_NONE, .sandbox = {.image_lock = -1}};
    struct err e = {0};
    int x = session_request_parse(a, &r.session, &e);
    if (x == 0)
        x = sandbox_request_parse(a, &r.sandbox, &e);
    if (x == 0)
        x = store_open_for(a, &r.store, &e);
    int code;
    if (x < 0)
        code = sandbox_request_fail(&r.sandbox, &e);
    else
        code = run_all(&r);
    session_request_free(&r.session);
    sandbox_request_free(&r.sandbox);
    store_close(&r.store);
    return code;
}

static const struct opt background_opts[] = {
    {"detach", 'd', NULL, "Run in the background; print the sandbox's name", OPT_COMMON},
    {"from-snapshot", 0, "SNAPSHOT", "Start from a snapshot", OPT_LATER | OPT_REPEAT,
     .alias = "from-snap"},
    {0},
};
static const struct opt_group background_group = {"Background", background_opts};

const struct cmd cmd_run = {
    .name = "run",
    .group = GROUP_SANDBOX,
    .summary = "Create a sandbox and run a command in it",
    .opts = quiet_opts,
    .groups = GROUPS(SANDBOX_GROUPS, &background_group, &session_group),
    .pos = MAYBE("IMAGE", IMAGE_ARGUMENT_HELP),
    .command_help = "Command for the entrypoint (default: the image's, or a shell)",
    .details =
        "Without --name the sandbox is removed when the command ends. With --name it is kept, "
        "stopped, and the next run with that name uses it again. msb exits with the "
        "command's exit code.\n\n" NET_DETAILS,
    .examples = "  msb run -- uname -a\n"
                "  msb run python:3.11-slim -- python3 -c 'print(6 * 7)'\n"
                "  msb run -v ./src:/src -w /src --name dev gcc -- make\n"
                "  msb run                             (a shell)\n"
                "  msb run -d --name web -p 8000:8000 python:3.11-slim -- python3 -m http.server\n"
                "  msb run --net-rule allow@pypi.org,allow@*.pythonhosted.org python:3.11-slim",
    .run = run_run,
};
