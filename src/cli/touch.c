#include "cli/select.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"

static int touch_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    (void)a;
    int r = sandbox_touch(s, name, e);
    if (r == 0)
        ui_success("Touched", name);
    return r;
}

static int touch_run(const struct args *a)
{
    return for_each_selected(a, touch_one);
}

static const struct opt touch_opts[] = {
    LABEL_SELECTOR("Touch"),
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_touch = {
    .name = "touch",
    .group = GROUP_SANDBOX,
    .summary = "Restart the idle timer of running sandboxes",
    .opts = {touch_opts},
    .pos = NAMES_POSITION("Sandboxes to touch"),
    .examples = "  msb touch web",
    .run = touch_run,
};
