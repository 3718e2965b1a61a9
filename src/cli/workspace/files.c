/* Files of workspaces, without booting anything: ls, get, put and rm. */
#include "cli/workspace/files.h"

#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "copy/copy.h"
#include "policy/rulebook.h"
#include "s3/sync.h"
#include "sandbox/bucket.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/utf8.h"
#include "workspace/files.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- NAME:PATH ------------------------------------------------------------------------------- */

struct place {
    char name[SPEC_NAME_MAX + 1];
    const char *path; /* from the top of the workspace; "." = all of it */
    int data;
    struct name_lock lock;
};
#define PLACE_NONE                             \
    {                                          \
        .path = ".", .data = -1, .lock.fd = -1 \
    }

static void place_close(struct place *p)
{
    name_lock_drop(&p->lock);
    close_fd(&p->data);
}
#define AUTO_PLACE CLEANUP(place_close)

static int parse_place(const char *arg, struct place *p, struct err *e)
{
    size_t n = strcspn(arg, ":");
    if (n > SPEC_NAME_MAX)
        return workspace_check_name(arg, e);
    memcpy(p->name, arg, n);
    p->name[n] = '\0';
    p->path = arg + n + (arg[n] == ':');
    p->path += strspn(p->path, "/");
    if (!*p->path)
        p->path = ".";
    return workspace_check_name(p->name, e);
}

/* Includes what is in the bucket; later: contents are not read. Writing only needs this to know
 * which directories exist. */
static int place_open(const struct store *s, struct place *p, bool writes, bool later,
                      struct err *e)
{
    struct workspace w;
    int r = workspace_open(s, p->name, &w, e);
    AUTO_CLOSE int dir = r < 0 ? r : workspace_dir_open(s, p->name, e);
    if (dir < 0)
        return dir;
    enum s3_here here = later ? S3_HERE_NAMES : S3_HERE_ALL;
    if (!writes || !s3_workspace_is_filled(dir) || s3_workspace_lacks(dir, here))
        r = bucket_enter(s, p->name, &(struct s3_sync){.here = here, .warn = ui_warn}, e);
    AUTO_FREE char *path = workspace_path(s, p->name);
    if (r == 0 && !path)
        r = err_oom(e);
    if (r == 0 && writes)
        r = workspace_lock(s, path, &p->lock, e);
    if (r < 0)
        return r;
    p->data = dir_open_at(dir, "data");
    return p->data < 0 ? err_sys(e, -p->data, "cannot open workspace '%s'", p->name) : 0;
}

/* --- ls -------------------------------------------------------------------------------------- */

static const struct workspace_file *file_item(const struct items *l, size_t i)
{
    const struct workspace_files *f = l->v;
    return &f->v[i];
}

static int files_load(struct items *l, struct err *e)
{
    AUTO_PLACE struct place p = PLACE_NONE;
    struct workspace_files *f = l->v = calloc(1, sizeof(*f));
    if (!f)
        return err_oom(e);
    int r = parse_place(l->args->pos[0], &p, e);
    if (r == 0)
        r = place_open(l->store, &p, false, true, e);
    if (r == 0)
        r = workspace_files_list(p.data, p.path, args_has(l->args, "recursive"), f, e);
    l->n = r < 0 ? 0 : f->n;
    return r;
}

static void files_free(struct items *l)
{
    if (l->v)
        workspace_files_free(l->v);
    free(l->v);
}

static char *safe(const char *text)
{
    char *copy = strdup(text);
    if (copy)
        utf8_defuse(copy);
    return copy;
}

static void file_name(const struct items *l, size_t i, struct buf *out)
{
    AUTO_FREE char *path = safe(file_item(l, i)->path);
    (void)buf_printf(out, "%s", path ? path : "");
}

static const char *kind_of(unsigned mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "dir" : S_ISLNK(mode) ? "symlink" : "other";
}

static json_t *file_json(const struct items *l, size_t i)
{
    const struct workspace_file *f = file_item(l, i);
    AUTO_FREE char *path = safe(f->path), *target = f->target ? safe(f->target) : NULL;
    char mode[16];
    (void)snprintf(mode, sizeof(mode), "%04o", f->mode & 07777);
    return json_pack("{s:i, s:s, s:o, s:s, s:I, s:s?, s:s, s:i}", "gid", (int)f->gid, "mode", mode,
                     "modified_at", json_time((uint64_t)MAX(f->mtime_ns, 1)), "path",
                     path ? path : "", "size", (json_int_t)f->size, "target", target, "type",
                     kind_of(f->mode), "uid", (int)f->uid);
}

static void file_row(const struct items *l, size_t i, struct table *t)
{
    const struct workspace_file *f = file_item(l, i);
    AUTO_FREE char *path = NULL;
    char mode[16], size[32] = "-", when[TIME_TEXT_MAX];
    (void)snprintf(mode, sizeof(mode), "%04o", f->mode & 07777);
    if (S_ISREG(f->mode))
        format_bytes(f->size, size, sizeof(size));
    time_local((uint64_t)MAX(f->mtime_ns, 0), when);
    if (asprintf(&path, "%s%s%s", f->path,
                 S_ISDIR(f->mode) ? "/"
                 : f->target      ? " -> "
                                  : "",
                 f->target ? f->target : "") < 0)
        path = NULL;
    TABLE_ROW(t, mode, size, when, path ? path : f->path);
}

static const struct noun files = {
    .none = "The directory is empty.",
    .of = true,
    .headers = {"MODE", "SIZE", "MODIFIED", "PATH"},
    .load = files_load,
    .free = files_free,
    .name = file_name,
    .row = file_row,
    .json = file_json,
};

int workspace_files_verb(const struct args *a)
{
    return noun_list(&files, a);
}

/* --- rm -------------------------------------------------------------------------------------- */

bool workspace_names_file(const char *arg)
{
    return strchr(arg, ':');
}

int workspace_file_remove_verb(const struct store *s, const struct args *a, const char *arg,
                               struct err *e)
{
    AUTO_PLACE struct place p = PLACE_NONE;
    int r = parse_place(arg, &p, e);
    if (r == 0 && strcmp(p.path, ".") == 0) {
        r = err_set(e, EINVAL, "there is no path in '%s'", arg);
        err_hint(e, "to remove the whole workspace: msb workspace rm %s", p.name);
    }
    if (r == 0)
        r = place_open(s, &p, true, true, e);
    if (r == 0)
        r = workspace_file_remove(p.data, p.path, args_has(a, "recursive"), e);
    if (r < 0)
        return r;
    place_close(&p);
    bucket_leave(s, p.name, ui_warn);
    return 0;
}

/* --- get, put -------------------------------------------------------------------------------- */

static int copy_whole(struct place *p, const char *host, bool put, struct err *e)
{
    static struct copy_end in, out;
    struct tree_progress progress = {.warn = ui_warn};
    struct copy_options opt = {.follow = false};
    in = (struct copy_end){.kind = COPY_BELOW, .below = p->data};
    out = (struct copy_end){.kind = COPY_HOST};
    int r = copy_path_parse(&in.path, p->path, e);
    if (r == 0)
        r = copy_path_parse(&out.path, host, e);
    if (r < 0)
        return r;
    return put ? copy_run(&out, &in, &opt, &progress, e) : copy_run(&in, &out, &opt, &progress, e);
}

static int transfer(const struct store *s, const char *arg, const char *host, bool put,
                    struct err *e)
{
    AUTO_PLACE struct place p = PLACE_NONE;
    int r = parse_place(arg, &p, e);
    if (r == 0 && strcmp(host, "-") != 0)
        r = policy_hold_transfer(s, p.name, host, !put, e);
    if (r == 0)
        r = place_open(s, &p, put, put, e);
    if (r < 0)
        return r;
    if (strcmp(host, "-") != 0)
        r = copy_whole(&p, host, put, e);
    else
        r = put ? workspace_file_write(p.data, p.path, STDIN_FILENO, e)
                : workspace_file_read(p.data, p.path, STDOUT_FILENO, e);
    place_close(&p);
    if (r == 0 && put)
        bucket_leave(s, p.name, ui_warn);
    return r;
}

static int transfer_run(const struct args *a, bool put)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    const char *place = a->pos[put ? 1 : 0], *host = a->pos[put ? 0 : 1];
    if (!workspace_names_file(place)) {
        (void)err_set(&e, EINVAL, "expected NAME:PATH, a path in a workspace: got '%s'", place);
        return ui_usage(&e);
    }
    int r = store_open_for(a, &s, &e);
    if (r == 0)
        r = transfer(&s, place, host, put, &e);
    if (r < 0)
        return ui_fail(&e);
    if (strcmp(host, "-") != 0)
        ui_success("Copied", put ? place : host);
    return EXIT_OK;
}

void difference_note(void *differences, const char *what, const char *path)
{
    struct differences *d = differences;
    json_add(&d->list, json_pack("{s:s, s:s}", d->key, what, "path", path));
    (void)buf_printf(d->text, "%-*s %s\n", d->width, what, path);
}

static const struct opt transfer_opts[] = {POLICY_OPTION, QUIET_OPTION, {0}};

static int get_run(const struct args *a)
{
    return transfer_run(a, false);
}

static int put_run(const struct args *a)
{
    return transfer_run(a, true);
}

const struct cmd cmd_workspace_get = {
    .name = "get",
    .summary = "Copy a file or directory out of a workspace",
    .opts = transfer_opts,
    .pos = ONE("NAME:PATH", "What to copy"),
    .then = ONE("DST", "Path on the host, or - for standard output"),
    .details = "If DST is a directory, the copy goes into it under its own name. No sandbox is "
               "started. A workspace in a bucket is synced first.",
    .examples = "  msb workspace get task-7:result.json .\n"
                "  msb workspace get task-7:log -",
    .run = get_run,
};

const struct cmd cmd_workspace_put = {
    .name = "put",
    .summary = "Copy a file or directory into a workspace",
    .opts = transfer_opts,
    .pos = ONE("FILE", "Path on the host, or - for standard input"),
    .then = ONE("NAME:PATH", "Where it goes"),
    .details = "If PATH is a directory, the copy goes into it under its own name; missing "
               "directories above it are created. No sandbox is started. A workspace in a bucket "
               "is synced afterwards.",
    .examples = "  msb workspace put task.md task-7:\n"
                "  msb workspace put ./src task-7:src\n"
                "  date | msb workspace put - task-7:started",
    .run = put_run,
};
