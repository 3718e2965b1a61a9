#include "cli/select.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"

static int start_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    struct spinner spin;
    (void)a;
    spinner_start(&spin, "Starting", name);
    int r = sandbox_start(s, name, ui_warn, e);
    spinner_stop(&spin);
    if (r == 0)
        ui_success("Started", name);
    return r;
}

static int start_run(const struct args *a)
{
    return for_each_selected(a, start_one);
}

static const struct opt start_opts[] = {
    LABEL_SELECTOR("Start"),
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_start = {
    .name = "start",
    .group = GROUP_SANDBOX,
    .summary = "Start stopped sandboxes",
    .opts = {start_opts},
    .pos = NAMES_POSITION("Sandboxes to start"),
    .examples = "  msb start web\n"
                "  msb start --label team=search",
    .run = start_run,
};
