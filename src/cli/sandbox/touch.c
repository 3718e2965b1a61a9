#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

static int touch_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    (void)a;
    return sandbox_touch(s, name, e);
}

static int touch_run(const struct args *a)
{
    return for_each_selected(a, &(struct action){.done = "Touched", .fn = touch_one});
}

static const struct opt touch_opts[] = {LABEL_SELECTOR("Touch"), QUIET_OPTION, {0}};

const struct cmd cmd_touch = {
    .name = "touch",
    .group = GROUP_SANDBOX,
    .summary = "Reset the idle timer of running sandboxes",
    .opts = touch_opts,
    .pos = NAMES_POSITION("Sandboxes to touch"),
    .examples = "  msb touch web",
    .run = touch_run,
};
