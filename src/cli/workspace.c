/* Workspaces: list, inspect, sync, remove. */
#include "workspace/workspace.h"
#include "cli/args.h"
#include "cli/select.h"
#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "workspace/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has(const struct sandbox *sb, const char *name)
{
    return sb->spec.workspace.name && strcmp(sb->spec.workspace.name, name) == 0;
}

static json_t *users_json(const struct sandbox *list, size_t n, const char *name)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        if (has(&list[i], name))
            (void)json_array_append_new(
                a, json_pack("{s:s, s:s}", "mode", workspace_mode_name(list[i].spec.workspace.mode),
                             "name", list[i].spec.name));
    return a;
}

static json_t *workspace_json(const struct store *s, const struct workspace *w,
                              const struct sandbox *list, size_t n)
{
    AUTO_FREE char *path = workspace_path(s, w->name);
    return json_pack("{s:o, s:s, s:s, s:o, s:I}", "created_at", json_time(w->created_ns), "name",
                     w->name, "path", path ? path : "", "sandboxes", users_json(list, n, w->name),
                     "used_bytes", (json_int_t)workspace_used(s, w->name));
}

/* Names of the sandboxes that have it, with commas. */
static void users_text(const struct sandbox *list, size_t n, const char *name, char *out,
                       size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n && at < size; i++)
        if (has(&list[i], name))
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? "," : "", list[i].spec.name);
}

/* --- list ------------------------------------------------------------------------------------ */

static int list_table(const struct store *s, const struct workspace *w, size_t n,
                      const struct sandbox *boxes, size_t n_boxes)
{
    static const char *const headers[] = {"NAME", "SIZE", "SANDBOXES", "CREATED"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < n; i++) {
        char size[32], when[TIME_TEXT_MAX], users[128];
        format_bytes(workspace_used(s, w[i].name), size, sizeof(size));
        time_local(w[i].created_ns, when);
        users_text(boxes, n_boxes, w[i].name, users, sizeof(users));
        table_add(&t, w[i].name);
        table_add(&t, size);
        table_add(&t, *users ? users : "-");
        table_add(&t, when);
    }
    int code = show_table(&t, TABLE_COLUMNS_MAX);
    table_free(&t);
    return code;
}

static int list_show(const struct args *a, const struct store *s, const struct workspace *w,
                     size_t n, const struct sandbox *boxes, size_t n_boxes)
{
    int code = EXIT_OK;
    if (wants_json(a)) {
        json_t *all = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(all, workspace_json(s, &w[i], boxes, n_boxes));
        return ui_print_json(all);
    }
    if (args_has(a, "quiet")) {
        for (size_t i = 0; code == EXIT_OK && i < n; i++)
            code = ui_print_line(w[i].name);
        return code;
    }
    if (n)
        return list_table(s, w, n, boxes, n_boxes);
    ui_note("No workspaces found.");
    return EXIT_OK;
}

static int list_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    struct workspace *w = NULL;
    struct sandbox *boxes = NULL;
    size_t n = 0, n_boxes = 0;
    int r = store_open(&s, &e);
    if (r == 0)
        r = workspace_list(&s, &w, &n, &e);
    if (r == 0)
        r = store_list(&s, &boxes, &n_boxes, &e);
    int code = r < 0 ? ui_fail(&e) : list_show(a, &s, w, n, boxes, n_boxes);
    sandbox_list_free(boxes, n_boxes);
    free(w);
    store_close(&s);
    return code;
}

static const struct opt list_opts[] = {
    FORMAT_OPTION,
    {.name = "quiet", .letter = 'q', .help = "Print names and nothing else"},
    {0},
};

const struct cmd cmd_workspace_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_STORAGE,
    .parent = &cmd_workspace,
    .summary = "Show workspaces",
    .opts = {list_opts},
    .examples = "  msb workspace list --format json",
    .run = list_run,
};

/* --- inspect --------------------------------------------------------------------------------- */

static int print_workspace(const struct store *s, const struct workspace *w,
                           const struct sandbox *boxes, size_t n_boxes)
{
    struct buf b;
    char size[32], when[TIME_TEXT_MAX], users[512];
    AUTO_FREE char *path = workspace_path(s, w->name);
    format_bytes(workspace_used(s, w->name), size, sizeof(size));
    time_local(w->created_ns, when);
    users_text(boxes, n_boxes, w->name, users, sizeof(users));
    buf_init(&b, SIZE_MAX / 2);
    (void)buf_printf(&b, "Name:           %s\nUsed:           %s\nSandboxes:      %s\n", w->name,
                     size, *users ? users : "-");
    (void)buf_printf(&b, "Created:        %s\nPath:           %s\n", when, path ? path : "");
    int code = ui_print(&b);
    buf_free(&b);
    return code;
}

static int inspect_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    struct workspace w = {0};
    struct sandbox *boxes = NULL;
    size_t n = 0;
    int code, r = store_open(&s, &e);
    if (r == 0)
        r = workspace_open(&s, a->pos[0], &w, &e);
    if (r == 0)
        r = store_list(&s, &boxes, &n, &e);
    if (r < 0)
        code = ui_fail(&e);
    else if (wants_json(a))
        code = ui_print_json(workspace_json(&s, &w, boxes, n));
    else
        code = print_workspace(&s, &w, boxes, n);
    sandbox_list_free(boxes, n);
    store_close(&s);
    return code;
}

static const struct opt inspect_opts[] = {FORMAT_OPTION, {0}};

const struct cmd cmd_workspace_inspect = {
    .name = "inspect",
    .group = GROUP_STORAGE,
    .parent = &cmd_workspace,
    .summary = "Show one workspace",
    .opts = {inspect_opts},
    .pos = {.name = "NAME", .help = "Workspace to show", .required = true},
    .examples = "  msb workspace inspect task-7",
    .run = inspect_run,
};

/* --- sync ------------------------------------------------------------------------------------ */

/* All sandboxes that have it as a snapshot; a sandbox can be named, too, since a directory of the
 * host has no name of its own. */
static int sync_one(const struct store *s, const char *name, uint64_t max, struct err *e)
{
    struct sandbox *boxes = NULL;
    size_t n = 0, found = 0;
    int r = store_list(s, &boxes, &n, e);
    for (size_t i = 0; r == 0 && i < n; i++) {
        const char *box = boxes[i].spec.name;
        if (!has(&boxes[i], name) && strcmp(box, name) != 0)
            continue;
        found++;
        if (boxes[i].spec.workspace.name == NULL && boxes[i].spec.workspace.path == NULL)
            r = err_set(e, EINVAL, "sandbox '%s' has no workspace", box);
        else if (spec_has_snapshot(&boxes[i].spec))
            r = sandbox_sync(s, box, max, ui_warn, e);
    }
    sandbox_list_free(boxes, n);
    struct workspace w;
    if (r == 0 && found == 0)
        r = workspace_open(s, name, &w, e);
    return r;
}

static int sync_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    int code = EXIT_OK;
    uint64_t max = 0;
    const char *v = args_get(a, "max");
    ui_set_quiet(args_has(a, "quiet"));
    if (v && parse_size(v, MIB, &max) < 0) {
        (void)args_bad_value(a, "max", v, PARSE_SIZE_EXAMPLES, &e);
        return ui_usage(&e);
    }
    if (store_open(&s, &e) < 0)
        return ui_fail(&e);
    for (size_t i = 0; i < a->n_pos; i++) {
        err_clear(&e);
        if (sync_one(&s, a->pos[i], max, &e) < 0)
            code = ui_fail(&e);
        else
            ui_success("Synced", a->pos[i]);
    }
    store_close(&s);
    return code;
}

static const struct opt sync_opts[] = {
    {.name = "max", .value = "SIZE", .help = "How large it may be, this time"},
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_workspace_sync = {
    .name = "sync",
    .group = GROUP_STORAGE,
    .parent = &cmd_workspace,
    .summary = "Copy workspaces in mode snapshot back to the host",
    .opts = {sync_opts},
    .pos = {.name = "NAMES",
            .help = "Workspaces, or sandboxes that have one",
            .required = true,
            .many = true},
    .details =
        "A sandbox that runs is copied as it is now; one that has stopped is started for that,\n"
        "with nothing running in it. Stopping, starting and removing a sandbox sync as well; this\n"
        "is for what ended by itself, and for looking at results early.",
    .examples = "  msb workspace sync task-7",
    .run = sync_run,
};

/* --- remove ---------------------------------------------------------------------------------- */

static int remove_run(const struct args *a)
{
    return for_each_named(a, "Removed", workspace_remove);
}

static const struct opt remove_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_workspace_remove = {
    .name = "remove",
    .alias = "rm",
    .group = GROUP_STORAGE,
    .parent = &cmd_workspace,
    .summary = "Remove workspaces and everything in them",
    .opts = {remove_opts},
    .pos = {.name = "NAMES", .help = "Workspaces to remove", .required = true, .many = true},
    .examples = "  msb workspace rm task-7",
    .run = remove_run,
};

static const struct cmd *const workspace_subs[] = {
    &cmd_workspace_list, &cmd_workspace_inspect, &cmd_workspace_sync, &cmd_workspace_remove, NULL,
};

const struct cmd cmd_workspace = {
    .name = "workspace",
    .alias = "ws",
    .group = GROUP_STORAGE,
    .summary = "Manage workspaces",
    .subs = workspace_subs,
    .details = "A workspace is a directory for one task, which outlives its sandboxes and appears "
               "in them\n"
               "as /workspace: msb run --workspace task-7. One that is not there is made.",
    .examples = "  msb run --workspace task-7 -- sh -c 'date >>/workspace/log'\n"
                "  msb workspace ls",
};
