#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"

#include <string.h>

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
    return strcmp(x->spec.name, y->spec.name);
}

static int print_json(const struct sandbox *list, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(a, json_pack("{s:o, s:s, s:s, s:s}", "created_at",
                                                 json_time(list[i].spec.created_ns), "image",
                                                 list[i].spec.image, "name", list[i].spec.name,
                                                 "status", status_name(list[i].state.status)));
    return ui_print_json(a);
}

static int print_table(const struct sandbox *list, size_t n)
{
    static const char *const headers[] = {"NAME", "IMAGE", "STATUS", "CREATED"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < n; i++) {
        char created[TIME_TEXT_MAX];
        time_local(list[i].spec.created_ns, created);
        table_add(&t, list[i].spec.name);
        table_add(&t, list[i].spec.image);
        table_add(&t, status_lower(list[i].state.status));
        table_add(&t, created);
    }
    int code = show_table(&t, 2);
    table_free(&t);
    return code;
}

static int list_run(const struct args *a)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    int code = show_list(a, keep, newest_first, &list, &n);
    if (code != EXIT_OK)
        return code;
    if (args_has(a, "quiet"))
        code = show_names(list, n);
    else if (wants_json(a))
        code = print_json(list, n);
    else if (n == 0)
        ui_note("No sandboxes found.");
    else
        code = print_table(list, n);
    sandbox_list_free(list, n);
    return code;
}

static const struct opt list_opts[] = {
    {.name = "running", .help = "Only those that run"},
    {.name = "stopped", .help = "Only those that do not"},
    LIST_OPTIONS,
    FORMAT_OPTION,
    {0},
};

const struct cmd cmd_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_SANDBOX,
    .summary = "List sandboxes, newest first",
    .opts = {list_opts},
    .examples = "  msb ls\n"
                "  msb ls --running --label team=search\n"
                "  msb rm -f $(msb ls -q)",
    .run = list_run,
};
