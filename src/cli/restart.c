#include "cli/select.h"
#include "cli/stop_opts.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"

#include <errno.h>

/* An ephemeral sandbox is gone once it has stopped: say so instead of losing it. */
static int check_lasting(const struct store *s, const char *name, struct err *e)
{
    struct sandbox sb;
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0)
        return r;
    bool ephemeral = sb.spec.ephemeral;
    sandbox_close(&sb);
    if (!ephemeral)
        return 0;
    err_set(e, EINVAL, "cannot restart sandbox '%s': it is removed when it stops", name);
    err_hint(e, "give a sandbox a name (msb run --name NAME) to keep it");
    return -EINVAL;
}

static int restart_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    uint64_t grace;
    bool force;
    int r = stop_options(a, &grace, &force, e);
    if (r == 0)
        r = check_lasting(s, name, e);
    if (r < 0)
        return r;
    struct spinner spin;
    spinner_start(&spin, "Restarting", name);
    r = sandbox_stop(s, name, grace, force, ui_warn, e);
    if (r == 0)
        r = sandbox_start(s, name, ui_warn, e);
    spinner_stop(&spin);
    if (r == 0)
        ui_success("Restarted", name);
    return r;
}

static int restart_run(const struct args *a)
{
    struct err e = {0};
    uint64_t grace;
    bool force;
    if (stop_options(a, &grace, &force, &e) < 0)
        return ui_usage(&e);
    return for_each_selected(a, restart_one);
}

static const struct opt restart_opts[] = {
    STOP_OPTS,
    LABEL_SELECTOR("Restart"),
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_restart = {
    .name = "restart",
    .group = GROUP_SANDBOX,
    .summary = "Stop sandboxes and start them again",
    .opts = {restart_opts},
    .pos = NAMES_POSITION("Sandboxes to restart"),
    .examples = "  msb restart web\n"
                "  msb restart --force --label team=search",
    .run = restart_run,
};
