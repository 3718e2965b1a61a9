#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

const struct cmd cmd_touch = {
    .name = "touch",
    .group = GROUP_SANDBOX,
    .summary = "Reset the idle timer of running sandboxes",
    .opts = OPTIONS(LABEL_SELECTOR("Touch"), QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to touch"),
    .examples = "  msb touch web",
    .each = &(const struct action){.done = "Touched", .plain = sandbox_touch, .labels = true},
};
