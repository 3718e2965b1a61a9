#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

#include <errno.h>

static int remove_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    int r = sandbox_remove(s, name, args_has(a, "force"), ui_warn, e);
    if (r == -ENOENT && ui_quiet())
        err_clear(e); /* the exit code is enough for scripts that make sure it is gone */
    return r;
}

const struct cmd cmd_remove = {
    .name = "remove",
    .alias = "rm",
    .group = GROUP_SANDBOX,
    .flags = CMD_DESTROYS,
    .summary = "Remove sandboxes and their disks",
    .opts = OPTIONS(
        {"force", 'f', NULL, "Also remove running sandboxes"}, LABEL_SELECTOR("Remove"),
        {"quiet", 'q', NULL, "Print only errors, and none for sandboxes that do not exist"}),
    .pos = NAMES_POSITION("Sandboxes to remove"),
    .details = "Images, volumes, workspaces and mounted host directories are kept.",
    .examples = "  msb rm web\n"
                "  msb rm --force --label team=search",
    .each = &(const struct action){"Removing", "Removed", remove_one, .labels = true},
};
