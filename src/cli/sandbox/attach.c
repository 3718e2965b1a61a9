/* attach: returns to a command that was left running. */
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/session.h"
#include "store/background.h"
#include "util/parse.h"

#include <errno.h>
#include <unistd.h>

/* The command that --id names, or the latest running one. */
static int choose(const struct args *a, const struct background *b,
                  const struct background_command **ret, struct err *e)
{
    const char *id = args_get(a, "id");
    uint64_t n = 0;
    *ret = id ? NULL : background_latest(b, true);
    if (id && (parse_u64(id, &n) < 0 || n == 0))
        return args_bad_value(a, "id", id, "expected a number, as 'msb inspect' shows it", e);
    for (size_t i = 0; id && i < b->n; i++)
        if (b->v[i].id == n && !b->v[i].ended)
            *ret = &b->v[i];
    if (*ret)
        return 0;
    err_set(e, ESRCH, "no such background command is running in '%s'", a->pos[0]);
    err_hint(e, "'msb logs %s' has the output of earlier commands; 'msb exec %s' starts another",
             a->pos[0], a->pos[0]);
    return -ESRCH;
}

static int attach_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    struct session_request q = {0};
    struct background b;
    const struct background_command *c = NULL;
    struct err e = {0};
    int r = detach_keys_option(a, &q, &e);
    if (r == 0)
        r = store_open(&s, &e);
    if (r == 0)
        r = sandbox_open(&s, a->pos[0], &sb, &e);
    if (r == 0) {
        background_load(&s, &sb, &b);
        r = choose(a, &b, &c, &e);
    }
    if (r < 0 || !c)
        return ui_fail(&e);
    q.attach = c->id;
    q.tty = c->tty;
    q.interactive = c->tty && !c->no_stdin && isatty(STDIN_FILENO) && !args_has(a, "no-stdin");
    q.no_stdin = c->no_stdin || args_has(a, "no-stdin") || (isatty(STDIN_FILENO) && !q.interactive);
    bool started, detached;
    return session_execute(&s, a->pos[0], &q, &started, &detached);
}

const struct cmd cmd_attach = {
    .name = "attach",
    .group = GROUP_SANDBOX,
    .summary = "Reattach to a background command",
    .opts = OPTIONS({"id", 0, "N", "Number of the command in 'msb inspect' (default: the latest)"},
                    {"no-stdin", 0, NULL, "Only watch; do not pass on input"}, DETACH_KEYS_OPTION),
    .pos = ONE("NAME", "Sandbox that it runs in"),
    .details =
        "Its output is shown from now on ('msb logs' has earlier output), and input is passed on "
        "if it was started with input. Ctrl-] detaches again. msb exits with its exit code.",
    .examples = "  msb attach web\n"
                "  msb attach --id 3 web",
    .run = attach_run,
};
