#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/stop.h"
#include "sandbox/lifecycle.h"

#include <errno.h>

/* An ephemeral sandbox is gone once it has stopped: refuse rather than lose it. */
static int check_lasting(const struct store *s, const char *name, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = sandbox_open(s, name, &sb, e);
    if (r < 0 || !sb.spec.ephemeral)
        return r;
    err_set(e, EINVAL, "cannot restart sandbox '%s': it is removed when it stops", name);
    err_hint(e, "name a sandbox (msb run --name NAME) to keep it");
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
    r = sandbox_stop(s, name, grace, force, ui_warn, e);
    return r < 0 ? r : sandbox_start(s, name, ui_warn, e);
}

const struct cmd cmd_restart = {
    .name = "restart",
    .group = GROUP_SANDBOX,
    .flags = CMD_DESTROYS,
    .summary = "Stop sandboxes and start them again",
    .opts = OPTIONS(STOP_OPTS, LABEL_SELECTOR("Restart"), QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to restart"),
    .examples = "  msb restart web\n"
                "  msb restart --force --label team=search",
    .each = &(const struct action){"Restarting", "Restarted", restart_one, .check = stop_check,
                                   .labels = true},
};
