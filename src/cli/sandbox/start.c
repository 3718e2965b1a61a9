#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

static int start_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    struct store with = *s; /* shares everything with it */
    with.policy_file = args_get(a, "policy");
    return sandbox_start(&with, name, ui_warn, e);
}

const struct cmd cmd_start = {
    .name = "start",
    .group = GROUP_SANDBOX,
    .summary = "Start stopped sandboxes",
    .opts = OPTIONS(LABEL_SELECTOR("Start"), POLICY_OPTION, QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to start"),
    .examples = "  msb start web\n"
                "  msb start --label team=search",
    .each = &(const struct action){"Starting", "Started", start_one, .labels = true},
};
