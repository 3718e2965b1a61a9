/* Versions of workspaces: checkpoint, log, diff, restore, prune. */
#include "versions/versions.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/workspace/files.h"
#include "sandbox/bucket.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* The disk space that all versions of a workspace may take, unless --max is given. */
#define MAX_DEFAULT (20 * GIB)
enum { KEEP_DEFAULT = 10 };

struct held {
    int dir;
    struct name_lock lock;
};
#define HELD_NONE                \
    {                            \
        .dir = -1, .lock.fd = -1 \
    }

static void held_close(struct held *h)
{
    name_lock_drop(&h->lock);
    close_fd(&h->dir);
}
#define AUTO_HELD CLEANUP(held_close)

/* reads: the contents of its files. */
static int hold(const struct store *s, const char *name, bool reads, struct held *h, struct err *e)
{
    struct workspace w;
    AUTO_FREE char *path = workspace_path(s, name);
    int r = path ? workspace_open(s, name, &w, e) : err_oom(e);
    if (r == 0 && reads)
        r = bucket_complete(s, name, ui_warn, e);
    if (r == 0)
        r = workspace_lock(s, path, &h->lock, e);
    if (r == 0)
        r = h->dir = workspace_dir_open(s, name, e);
    return MIN(r, 0);
}

static int parse_version(const char *text, unsigned *ret, struct err *e)
{
    uint64_t id;
    if (parse_u64(text, &id) < 0 || id == 0 || id > INT32_MAX)
        return err_hinted(e, err_set(e, EINVAL, "invalid version '%s': expected a number", text),
                          "msb workspace log lists the versions of a workspace");
    *ret = (unsigned)id;
    return 0;
}

static int parse_max(const struct args *a, uint64_t *ret, struct err *e)
{
    const char *v = args_get(a, "max");
    *ret = MAX_DEFAULT;
    return v && parse_size(v, MIB, ret) < 0 ? args_bad_value(a, "max", v, PARSE_SIZE_EXAMPLES, e)
                                            : 0;
}

/* clang-format off */
#define MAX_OPTION {"max", 0, "SIZE", "Refuse if all versions would take more (default: 20G)"}
/* clang-format on */

/* --- checkpoint ------------------------------------------------------------------------------ */

static int checkpoint_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_HELD struct held h = HELD_NONE;
    struct err e = {0};
    struct version v = {0};
    bool made = false;
    uint64_t max;
    char id[16];
    const char *message = args_get(a, "message");
    if (parse_max(a, &max, &e) < 0)
        return ui_usage(&e);
    int r = store_open(&s, &e);
    if (r == 0)
        r = hold(&s, a->pos[0], true, &h, &e);
    if (r == 0)
        r = version_make(h.dir, message ? message : "", max, ui_warn, &v, &made, &e);
    if (r < 0)
        return ui_fail(&e);
    if (!made)
        ui_note("Nothing has changed since the last version.");
    (void)snprintf(id, sizeof(id), "%u", v.id);
    return ui_print_line(id);
}

const struct cmd cmd_workspace_checkpoint = {
    .name = "checkpoint",
    .summary = "Save a version of a workspace",
    .opts = OPTIONS({"message", 'm', "TEXT", "Description for the log"}, MAX_OPTION, QUIET_OPTION),
    .pos = ONE("NAME", "Workspace"),
    .details =
        "Prints the number of the version. Only what has changed is stored; if nothing has, the "
        "last version's number is printed. Versions are kept on this host, even for a workspace in "
        "a bucket. Files that .msbignore names are left out. Programs that run in a sandbox are "
        "not stopped: files they are writing are saved as they are at that moment.",
    .examples = "  msb workspace checkpoint task-7 -m 'before the refactoring'",
    .run = checkpoint_run,
};

/* --- log ------------------------------------------------------------------------------------- */

static const struct version *version_item(const struct items *l, size_t i)
{
    const struct version *v = l->v;
    return &v[i];
}

static int versions_load(struct items *l, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    struct version *v = NULL;
    int r = hold(l->store, l->args->pos[0], false, &h, e);
    if (r == 0)
        r = versions_list(h.dir, &v, &l->n, e);
    l->v = v;
    return r;
}

static void version_name(const struct items *l, size_t i, struct buf *out)
{
    (void)buf_printf(out, "%u", version_item(l, i)->id);
}

static void version_row(const struct items *l, size_t i, struct table *t)
{
    const struct version *v = version_item(l, i);
    char text[32], when[TIME_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "%u", v->id);
    table_add(t, text);
    time_local(v->created_ns, when);
    table_add(t, when);
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)v->files);
    table_add(t, text);
    format_bytes(v->bytes, text, sizeof(text));
    TABLE_ROW(t, text, v->message);
}

static json_t *version_json(const struct items *l, size_t i)
{
    const struct version *v = version_item(l, i);
    return json_pack("{s:I, s:o, s:I, s:i, s:o}", "bytes", (json_int_t)v->bytes, "created_at",
                     json_time(v->created_ns), "files", (json_int_t)v->files, "id", (int)v->id,
                     "message", json_text(v->message));
}

static const struct noun versions = {
    .none = "The workspace has no versions.",
    .of = true,
    .headers = {"VERSION", "CREATED", "FILES", "SIZE", "MESSAGE"},
    .load = versions_load,
    .name = version_name,
    .row = version_row,
    .json = version_json,
};

const struct cmd cmd_workspace_log = {
    .name = "log",
    .summary = "List the versions of a workspace",
    .opts = list_opts,
    .pos = ONE("NAME", "Workspace"),
    .examples = "  msb workspace log task-7\n"
                "  msb workspace log task-7 --format json",
    .list = &versions,
};

/* --- diff ------------------------------------------------------------------------------------ */

/* --from: by default, the last one; --to: by default, the current state. */
static int find_trees(const struct args *a, int dir, struct s3_tree *old, struct s3_tree *now,
                      struct err *e)
{
    AUTO_FREE struct version *v = NULL;
    size_t n = 0;
    unsigned from = 0, to = 0;
    const char *f = args_get(a, "from"), *t = args_get(a, "to");
    int r = f ? parse_version(f, &from, e) : versions_list(dir, &v, &n, e);
    if (r == 0 && t)
        r = parse_version(t, &to, e);
    if (r == 0 && (from || n))
        r = version_tree(dir, from ? from : v[0].id, ui_warn, old, e);
    return r < 0 ? r : version_tree(dir, to, ui_warn, now, e);
}

static int diff(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    AUTO_S3_TREE struct s3_tree old = {0}, now = {0};
    AUTO_BUF struct buf text = {.limit = 256 << 20};
    int r = hold(s, a->pos[0], true, &h, e);
    if (r == 0)
        r = find_trees(a, h.dir, &old, &now, e);
    if (r < 0)
        return r;
    struct differences d = {"change", 8, json_array(), &text};
    version_compare(&old, &now, difference_note, &d);
    if (wants_json(a))
        return ui_print_json(d.list);
    json_decref(d.list);
    return ui_print(&text);
}

const struct cmd cmd_workspace_diff = {
    .name = "diff",
    .summary = "Show which files changed since a version",
    .opts = OPTIONS({"from", 0, "VERSION", "Compare with this version (default: the last one)"},
                    {"to", 0, "VERSION", "Compare this version (default: the current state)"},
                    FORMAT_OPTION, QUIET_OPTION),
    .pos = ONE("NAME", "Workspace"),
    .details = "One line for each path: added, changed or removed.",
    .examples = "  msb workspace diff task-7\n"
                "  msb workspace diff task-7 --from 3 --to 5",
    .with_store = diff,
};

/* --- restore, prune -------------------------------------------------------------------------- */

static int restore_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_HELD struct held h = HELD_NONE;
    struct err e = {0};
    unsigned id = 0;
    uint64_t max;
    if (parse_version(a->pos[1], &id, &e) < 0 || parse_max(a, &max, &e) < 0)
        return ui_usage(&e);
    int r = store_open(&s, &e);
    if (r == 0)
        r = hold(&s, a->pos[0], true, &h, &e);
    if (r == 0)
        r = version_restore(h.dir, id, max, ui_warn, &e);
    held_close(&h);
    if (r < 0)
        return ui_fail(&e);
    bucket_leave(&s, a->pos[0], ui_warn);
    ui_success("Restored", a->pos[0]);
    return EXIT_OK;
}

const struct cmd cmd_workspace_restore = {
    .name = "restore",
    .summary = "Restore a workspace to an earlier version",
    .opts = OPTIONS(MAX_OPTION, QUIET_OPTION),
    .pos = ONE("NAME", "Workspace"),
    .then = ONE("VERSION", "Its number in the log"),
    .details =
        "The current state is saved as a version first, so nothing is lost. Only files that differ "
        "are replaced, one by one; files that .msbignore names are left alone. Sandboxes may use "
        "the workspace meanwhile. A workspace in a bucket is synced afterwards.",
    .examples = "  msb workspace restore task-7 3",
    .run = restore_run,
};

static int prune_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    const char *v = args_get(a, "keep");
    uint64_t keep = KEEP_DEFAULT;
    size_t removed = 0;
    char text[64];
    if (v && (parse_u64(v, &keep) < 0 || keep == 0))
        return args_bad_value(a, "keep", v, "expected a number, 1 or higher", e);
    int r = hold(s, name, false, &h, e);
    if (r == 0)
        r = versions_prune(h.dir, (size_t)MIN(keep, (uint64_t)VERSIONS_MAX), &removed, e);
    if (r < 0)
        return r;
    (void)snprintf(text, sizeof(text), "%zu version%s", removed, removed == 1 ? "" : "s");
    ui_success("Removed", text);
    return 0;
}

const struct cmd cmd_workspace_prune = {
    .name = "prune",
    .flags = CMD_DESTROYS,
    .summary = "Remove old versions of workspaces",
    .opts = OPTIONS({"keep", 0, "N", "Keep the newest N versions (default: 10)"}, QUIET_OPTION),
    .pos = SOME("NAMES", "Workspaces"),
    .details = "The files of the workspaces stay as they are.",
    .examples = "  msb workspace prune task-7 --keep 3",
    .each = &(const struct action){.fn = prune_one},
};
