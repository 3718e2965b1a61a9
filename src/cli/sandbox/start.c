#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

static int start_one(const struct store *s, const char *name, struct err *e)
{
    return sandbox_start(s, name, ui_warn, e);
}

const struct cmd cmd_start = {
    .name = "start",
    .group = GROUP_SANDBOX,
    .summary = "Start stopped sandboxes",
    .opts = OPTIONS(LABEL_SELECTOR("Start"), POLICY_OPTION, QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to start"),
    .examples = "  msb start web\n"
                "  msb start --label team=search",
    .each = &(const struct action){"Starting", "Started", .plain = start_one, .labels = true},
};
