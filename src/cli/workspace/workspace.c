/* Workspaces: list, inspect, sync, remove; create and status are in bucket.c, their files in files.c,
 * versions of them in versions.c. */
#include "workspace/workspace.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/workspace/files.h"
#include "s3/config.h"
#include "sandbox/bucket.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "workspace/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What list and inspect read. */
struct shelf {
    struct workspace *w;
    struct sandbox *boxes;
    size_t n_boxes;
};

static const struct workspace *workspace_item(const struct items *l, size_t i)
{
    const struct shelf *f = l->v;
    return &f->w[i];
}

static bool uses(const struct sandbox *sb, const char *name)
{
    return sb->spec.workspace.name && strcmp(sb->spec.workspace.name, name) == 0;
}

/* --- list, inspect --------------------------------------------------------------------------- */

static int load_shelf(struct items *l, const char *name, struct err *e)
{
    struct shelf *f = l->v = calloc(1, sizeof(*f));
    if (!f)
        return err_oom(e);
    int r;
    if (name) {
        l->n = 1;
        f->w = calloc(1, sizeof(*f->w));
        r = f->w ? workspace_open(l->store, name, f->w, e) : err_oom(e);
    } else {
        r = workspace_list(l->store, &f->w, &l->n, e);
    }
    return r < 0 ? r : store_list(l->store, &f->boxes, &f->n_boxes, e);
}

static int workspace_items_load(struct items *l, struct err *e)
{
    return load_shelf(l, NULL, e);
}

static int workspace_items_open(struct items *l, const char *name, struct err *e)
{
    return load_shelf(l, name, e);
}

static void workspace_items_free(struct items *l)
{
    struct shelf *f = l->v;
    if (f) {
        sandbox_list_free(f->boxes, f->n_boxes);
        free(f->w);
    }
    free(f);
}

static void workspace_item_name(const struct items *l, size_t i, struct buf *out)
{
    (void)buf_printf(out, "%s", workspace_item(l, i)->name);
}

/* NULL: it is not in one. */
static char *bucket_of(const struct store *s, const char *name)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    AUTO_CLOSE int dir = workspace_dir_open(s, name, NULL);
    return dir >= 0 && s3_config_load(dir, &c, NULL) == 0 ? s3_config_text(&c) : NULL;
}

static json_t *workspace_json(const struct items *l, size_t i)
{
    const struct shelf *f = l->v;
    const struct workspace *w = &f->w[i];
    AUTO_FREE char *path = workspace_path(l->store, w->name);
    AUTO_FREE char *bucket = bucket_of(l->store, w->name);
    json_t *users = json_array();
    for (size_t k = 0; k < f->n_boxes; k++) {
        const struct sandbox_spec *s = &f->boxes[k].spec;
        if (uses(&f->boxes[k], w->name))
            (void)json_array_append_new(users, json_pack("{s:s, s:s}", "mode",
                                                         workspace_mode_name(s->workspace.mode),
                                                         "name", s->name));
    }
    return json_pack("{s:s?, s:o, s:s, s:s, s:o, s:I}", "bucket", bucket, "created_at",
                     json_time(w->created_ns), "name", w->name, "path", path ? path : "",
                     "sandboxes", users, "used_bytes",
                     (json_int_t)workspace_used(l->store, w->name));
}

/* Its size on disk, the sandboxes that use it ("-" = none), and its creation time. */
struct facts {
    char size[32], users[512], when[TIME_TEXT_MAX];
};

static void find_facts(const struct items *l, size_t i, struct facts *ret)
{
    const struct shelf *f = l->v;
    const struct workspace *w = &f->w[i];
    size_t at = 0;
    format_bytes(workspace_used(l->store, w->name), ret->size, sizeof(ret->size));
    time_local(w->created_ns, ret->when);
    (void)snprintf(ret->users, sizeof(ret->users), "-");
    for (size_t k = 0; k < f->n_boxes && at < sizeof(ret->users); k++)
        if (uses(&f->boxes[k], w->name))
            at += (size_t)snprintf(ret->users + at, sizeof(ret->users) - at, "%s%s", at ? "," : "",
                                   f->boxes[k].spec.name);
}

static void workspace_item_row(const struct items *l, size_t i, struct table *t)
{
    struct facts facts;
    find_facts(l, i, &facts);
    TABLE_ROW(t, workspace_item(l, i)->name, facts.size, facts.users, facts.when);
}

static void workspace_text(const struct items *l, struct buf *b)
{
    const struct workspace *w = workspace_item(l, 0);
    AUTO_FREE char *path = workspace_path(l->store, w->name);
    struct facts facts;
    find_facts(l, 0, &facts);
    text_line(b, "Name:", w->name);
    text_line(b, "Used:", facts.size);
    text_line(b, "Sandboxes:", facts.users);
    text_line(b, "Created:", facts.when);
    text_line(b, "Path:", path);
    AUTO_FREE char *bucket = bucket_of(l->store, w->name);
    if (bucket)
        text_line(b, "Bucket:", bucket);
}

static const struct noun workspaces = {
    .none = "No workspaces found.",
    .headers = {"NAME", "SIZE", "SANDBOXES", "CREATED"},
    .widths = {0, 0, 124, 0},
    .load = workspace_items_load,
    .open = workspace_items_open,
    .free = workspace_items_free,
    .name = workspace_item_name,
    .row = workspace_item_row,
    .json = workspace_json,
    .text = workspace_text,
};

static int list_run(const struct args *a)
{
    if (a->n_pos)
        return workspace_files_verb(a);
    if (args_has(a, "recursive")) {
        struct err e = {0};
        (void)err_set(&e, EINVAL, "--recursive requires a workspace");
        return ui_usage(&e);
    }
    return noun_list(&workspaces, a);
}

static const struct cmd cmd_workspace_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List workspaces, or the files of one",
    .opts = OPTIONS({"recursive", 'R', NULL, "With a workspace: list everything below it, too"},
                    NAMES_ONLY_OPTION, FORMAT_OPTION),
    .pos = MAYBE("NAME:PATH", "Directory to list; NAME alone: the top directory"),
    .details =
        "Files are listed without starting a sandbox. A workspace in a bucket is synced first.",
    .examples = "  msb workspace ls\n"
                "  msb workspace ls task-7:src\n"
                "  msb workspace ls -R task-7 --format json",
    .run = list_run,
};

static const struct cmd cmd_workspace_inspect = {
    .name = "inspect",
    .summary = "Show details of a workspace",
    .opts = inspect_opts,
    .pos = ONE("NAME", "Workspace to show"),
    .examples = "  msb workspace inspect task-7\n"
                "  msb workspace inspect task-7 --format json",
    .inspect = &workspaces,
};

/* --- sync ------------------------------------------------------------------------------------ */

static int parse_max(const struct args *a, uint64_t *ret, struct err *e)
{
    const char *v = args_get(a, "max");
    if (v && parse_size(v, MIB, ret) < 0)
        return args_bad_value(a, "max", v, PARSE_SIZE_EXAMPLES, e);
    return 0;
}

static int check_max(const struct args *a, struct err *e)
{
    return parse_max(a, &(uint64_t){0}, e);
}

/* Every sandbox that has a snapshot of the workspace. The name may also be a sandbox's, since a
 * host directory has no name. */
static int sync_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    struct sandbox *boxes = NULL;
    size_t n = 0, found = 0;
    uint64_t max = 0;
    char of[SPEC_NAME_MAX + 1] = ""; /* the named workspace, if it is one */
    int r = parse_max(a, &max, e);
    if (workspace_open(s, name, &(struct workspace){0}, NULL) == 0)
        (void)snprintf(of, sizeof(of), "%s", name);
    if (r == 0)
        r = store_list(s, &boxes, &n, e);
    for (size_t i = 0; r == 0 && i < n; i++) {
        const struct sandbox_spec *spec = &boxes[i].spec;
        if (!uses(&boxes[i], name) && strcmp(spec->name, name) != 0)
            continue;
        found++;
        if (!*of && spec->workspace.name)
            (void)snprintf(of, sizeof(of), "%s", spec->workspace.name);
        if (!spec->workspace.name && !spec->workspace.path)
            r = err_set(e, EINVAL, "sandbox '%s' has no workspace", spec->name);
        else if (spec_has_snapshot(spec))
            r = sandbox_sync(s, spec->name, max, ui_warn, e);
    }
    sandbox_list_free(boxes, n);
    struct workspace w;
    if (r == 0 && found == 0)
        r = workspace_open(s, name, &w, e);
    struct s3_sync how = {.warn = ui_warn, .max = max, .emptied = args_has(a, "emptied")};
    if (r == 0 && *of)
        r = bucket_sync(s, of, &how, &(bool){false}, e);
    return r;
}

static const struct cmd cmd_workspace_sync = {
    .name = "sync",
    .summary = "Copy snapshot workspaces back to the host, and to their buckets",
    .opts = OPTIONS(
        {"max", 0, "SIZE", "Size limit for this sync"},
        {"emptied", 0, NULL, "The bucket was emptied on purpose: remove its files here, too"},
        QUIET_OPTION),
    .pos = SOME("NAMES", "Workspaces, or sandboxes that have one"),
    .details =
        "A running sandbox is copied as it is now. A stopped one is started for the copy, without "
        "running any command. Stopping, starting and removing a sandbox sync, too: use this for a "
        "sandbox that ended by itself, or to see results early.\n\n"
        "A workspace in a bucket is brought up to date in both directions. If a file changed on "
        "both sides, both versions are kept: the bucket's keeps the name, the local one is "
        "renamed. If the bucket has lost its manifest and files, the sync is refused without "
        "--emptied.",
    .examples = "  msb workspace sync task-7\n"
                "  msb workspace sync --max 4G task-7",
    .each =
        &(const struct action){
            .doing = "Syncing", .done = "Synced", .fn = sync_one, .check = check_max},
};

/* --- remove ---------------------------------------------------------------------------------- */

static int workspace_remove_one(const struct store *s, const struct args *a, const char *name,
                                struct err *e)
{
    return workspace_names_file(name) ? workspace_file_remove_verb(s, a, name, e)
                                      : workspace_remove(s, name, e);
}

static const struct cmd cmd_workspace_remove = {
    .name = "remove",
    .alias = "rm",
    .flags = CMD_DESTROYS,
    .summary = "Remove workspaces, or files in them",
    .opts = OPTIONS(
        {"recursive", 'r', NULL, "For NAME:PATH: remove directories, too, and their contents"},
        QUIET_OPTION),
    .pos = SOME("NAMES", "Workspaces to remove, or NAME:PATH for files in them"),
    .details =
        "For a workspace in a bucket, only the local files are removed; the bucket is unchanged. "
        "A file (NAME:PATH) is removed from the bucket, too, by a sync afterwards.",
    .examples = "  msb workspace rm task-7\n"
                "  msb workspace rm task-7:out/old.log",
    .each = &(const struct action){.done = "Removed", .fn = workspace_remove_one},
};

const struct cmd cmd_workspace = {
    .name = "workspace",
    .alias = "ws",
    .group = GROUP_STORAGE,
    .summary = "Manage workspaces",
    .subs =
        VERBS(&cmd_workspace_create, &cmd_workspace_list, &cmd_workspace_inspect,
              &cmd_workspace_get, &cmd_workspace_put, &cmd_workspace_status, &cmd_workspace_sync,
              &cmd_workspace_checkpoint, &cmd_workspace_log, &cmd_workspace_diff,
              &cmd_workspace_restore, &cmd_workspace_prune, &cmd_workspace_remove),
    .details =
        "A workspace is the directory of one task: it outlives sandboxes and is mounted in "
        "them at /workspace. Naming one that does not exist creates it. Its files can be kept in "
        "an S3 bucket.",
    .examples = "  msb run --workspace task-7 -- sh -c 'date >>/workspace/log'",
};
