#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/verbs.h"

static bool keep(const struct sandbox *sb, const struct args *a)
{
    enum status st = sb->state.status;
    bool running = args_has(a, "running"), stopped = args_has(a, "stopped");
    if (!running && !stopped)
        return true;
    return st == STATUS_STOPPED || st == STATUS_CRASHED ? stopped : running;
}

static int newest_first(const void *a, const void *b)
{
    const struct sandbox *x = a, *y = b;
    if (x->spec.created_ns != y->spec.created_ns)
        return x->spec.created_ns > y->spec.created_ns ? -1 : 1;
    return sandbox_by_name(a, b);
}

static int list_items_load(struct items *l, struct err *e)
{
    return sandboxes_load(l, keep, newest_first, e);
}

static json_t *list_item_json(const struct items *l, size_t i)
{
    const struct sandbox *sb = sandbox_item(l, i);
    struct background b;
    background_load(l->store, sb, &b);
    const struct background_command *c = background_latest(&b, false);
    bool known = c && c->ended && c->exit_code != BACKGROUND_UNKNOWN;
    return json_pack("{s:o, s:o*, s:s, s:s, s:s}", "created_at", json_time(sb->spec.created_ns),
                     "exit_code", known ? json_integer(c->exit_code) : NULL, "image",
                     sb->spec.image, "name", sb->spec.name, "status",
                     status_name(sb->state.status));
}

static void list_item_row(const struct items *l, size_t i, struct table *t)
{
    const struct sandbox *sb = sandbox_item(l, i);
    char created[TIME_TEXT_MAX], status[STATUS_TEXT_MAX];
    struct background b;
    background_load(l->store, sb, &b);
    show_status(sb, &b, status);
    time_local(sb->spec.created_ns, created);
    TABLE_ROW(t, sb->spec.name, sb->spec.image, status, created);
}

static const struct noun sandboxes = {
    .none = "No sandboxes found.",
    .headers = {"NAME", "IMAGE", "STATUS", "CREATED"},
    .status_column = 2,
    .load = list_items_load,
    .free = sandboxes_free,
    .name = sandbox_item_name,
    .row = list_item_row,
    .json = list_item_json,
};

const struct cmd cmd_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_SANDBOX,
    .summary = "List sandboxes, newest first",
    .opts = OPTIONS({"all", 'a', NULL, "Running and stopped sandboxes: the default", OPT_HIDDEN},
                    {"running", 0, NULL, "Only running sandboxes"},
                    {"stopped", 0, NULL, "Only stopped and crashed sandboxes"}, LABEL_FILTER,
                    NAMES_ONLY_OPTION, FORMAT_OPTION),
    .examples = "  msb ls\n"
                "  msb ls --running --label team=search\n"
                "  msb rm -f $(msb ls -q)",
    .list = &sandboxes,
};
