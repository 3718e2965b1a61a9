#include "cli/select.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"

#include <errno.h>

static int remove_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    struct spinner spin;
    spinner_start(&spin, "Removing", name);
    int r = sandbox_remove(s, name, args_has(a, "force"), ui_warn, e);
    spinner_stop(&spin);
    if (r == 0)
        ui_success("Removed", name);
    else if (r == -ENOENT && ui_quiet())
        err_clear(e); /* "make sure it is gone": the exit code says the rest */
    return r;
}

static int remove_run(const struct args *a)
{
    return for_each_selected(a, remove_one);
}

static const struct opt remove_opts[] = {
    {.name = "force", .letter = 'f', .help = "Remove it even if it is running"},
    LABEL_SELECTOR("Remove"),
    {.name = "quiet", .letter = 'q', .help = "Say nothing, not even that it was not there"},
    {0},
};

const struct cmd cmd_remove = {
    .name = "remove",
    .alias = "rm",
    .group = GROUP_SANDBOX,
    .summary = "Remove sandboxes and everything in them",
    .opts = {remove_opts},
    .pos = NAMES_POSITION("Sandboxes to remove"),
    .examples = "  msb rm web\n"
                "  msb rm --force --label team=search",
    .run = remove_run,
};
