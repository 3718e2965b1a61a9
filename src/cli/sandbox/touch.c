#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

static const struct opt touch_opts[] = {LABEL_SELECTOR("Touch"), QUIET_OPTION, {0}};

const struct cmd cmd_touch = {
    .name = "touch",
    .group = GROUP_SANDBOX,
    .summary = "Reset the idle timer of running sandboxes",
    .opts = touch_opts,
    .pos = NAMES_POSITION("Sandboxes to touch"),
    .examples = "  msb touch web",
    .each = &(const struct action){.done = "Touched", .plain = sandbox_touch, .labels = true},
};
