#include "workspace/workspace.h"

#include "image/oci/digest.h"
#include "store/json_file.h"
#include "store/named.h"
#include "store/volume.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int workspace_load(int all, const char *name, void *ret);

static bool has_workspace(const struct sandbox_spec *spec, const char *name)
{
    return spec->workspace.name && strcmp(spec->workspace.name, name) == 0;
}

_Static_assert(offsetof(struct workspace, name) == 0, "see named.h");
static const struct named_kind workspaces = {
    .what = "workspace",
    .dir = "workspaces",
    .size = sizeof(struct workspace),
    .check_name = workspace_check_name,
    .load = workspace_load,
    .record = "workspace.json",
    .used_by = has_workspace,
    .use = "belongs to",
};

static int workspace_load(int all, const char *name, void *ret)
{
    AUTO_JSON json_t *j = NULL;
    struct workspace *w = ret;
    int r = named_record_load(&workspaces, all, name, &j);
    if (r < 0)
        return r;
    w->created_ns = (uint64_t)json_integer_value(json_object_get(j, "created_ns"));
    (void)snprintf(w->name, sizeof(w->name), "%s", name);
    return 0;
}

/* Two processes doing this at once do the same, so no lock is needed. */
static int workspace_make(int all, const char *name, workspace_prepare_fn prepare, void *ctx,
                          struct err *e)
{
    AUTO_CLOSE int dir = named_made_open(&workspaces, all, name, e);
    if (dir < 0)
        return dir;
    /* Other users of a guest may look into it, whatever our umask is. */
    if ((mkdirat(dir, "data", 0755) < 0 && errno != EEXIST) || fchmodat(dir, "data", 0755, 0) < 0)
        return err_sys(e, errno, "cannot create workspace '%s'", name);
    int r = prepare ? prepare(dir, ctx, e) : 0;
    if (r < 0)
        return err_wrap(e, r, "cannot create workspace '%s'", name);
    json_t *record = json_pack("{s:I}", "created_ns", (json_int_t)realtime_ns());
    r = json_file_save(dir, workspaces.record, record, true);
    return r < 0 ? err_sys(e, -r, "cannot create workspace '%s'", name) : 0;
}

static int workspace_ensure(const struct store *s, const char *name, struct err *e)
{
    struct workspace w;
    AUTO_CLOSE int all = named_dir_open(s, &workspaces, true, e);
    if (all < 0)
        return all;
    int r = workspace_load(all, name, &w);
    if (r == -ENOENT)
        return workspace_make(all, name, NULL, NULL, e);
    return r < 0 ? err_sys(e, -r, "cannot read workspace '%s'", name) : 0;
}

int workspace_create(const struct store *s, const char *name, workspace_prepare_fn prepare,
                     void *ctx, struct err *e)
{
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    struct workspace w;
    int r = workspace_check_name(name, e);
    if (r == 0)
        r = name_lock_take_kind(s, "workspace", name, &lock, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int all = named_dir_open(s, &workspaces, true, e);
    if (all < 0)
        return all;
    r = workspace_load(all, name, &w);
    if (r == -ENOENT)
        return workspace_make(all, name, prepare, ctx, e);
    return r < 0 ? err_sys(e, -r, "cannot read workspace '%s'", name)
                 : err_set(e, EEXIST, "workspace already exists: %s", name);
}

int workspace_settle(const struct store *s, struct sandbox_spec *spec, struct err *e)
{
    struct spec_workspace *w = &spec->workspace;
    int r = w->name ? workspace_ensure(s, w->name, e) : 0;
    if (r < 0 || w->mode != WORKSPACE_FUSE || (!w->name && !w->path))
        return r;
    AUTO_FREE char *path = w->name ? workspace_path(s, w->name) : NULL;
    AUTO_FREE char *real = path ? realpath(path, NULL) : NULL; /* MSB_HOME may be a link */
    if (w->name && !real)
        return err_sys(e, errno, "cannot open workspace '%s'", w->name);
    struct spec_mount m = {
        .kind = MOUNT_BIND, .guest = (char *)WORKSPACE_GUEST_PATH, .source = real ? real : w->path};
    if (w->limited)
        m.quota = w->max;
    r = spec_add_mount(spec, &m, e);
    if (r == 0)
        spec_protect_mounts(spec);
    return r;
}

int workspace_open(const struct store *s, const char *name, struct workspace *ret, struct err *e)
{
    return named_open(s, &workspaces, name, ret, e);
}

int workspace_list(const struct store *s, struct workspace **ret, size_t *n, struct err *e)
{
    void *list;
    int r = named_list(s, &workspaces, &list, n, e);
    *ret = list;
    return r;
}

int workspace_remove(const struct store *s, const char *name, struct err *e)
{
    return named_remove(s, &workspaces, name, e);
}

int workspace_dir_open(const struct store *s, const char *name, struct err *e)
{
    AUTO_CLOSE int all = named_dir_open(s, &workspaces, true, e);
    if (all < 0)
        return all;
    int fd = dir_open_at(all, name);
    return fd < 0 ? err_sys(e, -fd, "cannot open workspace '%s'", name) : fd;
}

int workspace_lock(const struct store *s, const char *path, struct name_lock *ret, struct err *e)
{
    char hex[DIGEST_HEX_SIZE];
    struct digest d = digest_of(path, strlen(path));
    digest_hex(&d, hex);
    return name_lock_take_kind(s, "workspace-path", hex, ret, e);
}

char *workspace_path(const struct store *s, const char *name)
{
    char *path;
    return asprintf(&path, "%s/workspaces/%s/data", s->home, name) < 0 ? NULL : path;
}

uint64_t workspace_used(const struct store *s, const char *name)
{
    AUTO_FREE char *path = workspace_path(s, name);
    return tree_used(path);
}
