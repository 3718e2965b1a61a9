#include "workspace/workspace.h"

#include "store/volume.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_MAX = 4096 };

static int open_all(const struct store *s, struct err *e)
{
    if (mkdirat(s->home_fd, "workspaces", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make %s/workspaces", s->home);
    int fd = openat(s->home_fd, "workspaces", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? err_sys(e, errno, "cannot open %s/workspaces", s->home) : fd;
}

static int load(int all, const char *name, struct workspace *ret)
{
    AUTO_FREE char *text = NULL;
    char file[SPEC_NAME_MAX + 32];
    size_t n;
    (void)snprintf(file, sizeof(file), "%s/workspace.json", name);
    int r = file_read_at(all, file, JSON_MAX, &text, &n);
    if (r < 0)
        return r;
    json_t *j = json_loadb(text, n, 0, NULL);
    *ret = (struct workspace){.created_ns =
                                  (uint64_t)json_integer_value(json_object_get(j, "created_ns"))};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    json_decref(j);
    return 0;
}

/* What two do at once is the same: nothing here needs a lock. */
static int make(int all, const char *name, struct err *e)
{
    char text[64];
    if (mkdirat(all, name, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make workspace '%s'", name);
    AUTO_CLOSE int dir = openat(all, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    /* Other users of a guest may look into it, whatever our umask is. */
    if (dir < 0 || (mkdirat(dir, "data", 0755) < 0 && errno != EEXIST) ||
        fchmodat(dir, "data", 0755, 0) < 0)
        return err_sys(e, errno, "cannot make workspace '%s'", name);
    int n =
        snprintf(text, sizeof(text), "{\"created_ns\":%llu}", (unsigned long long)realtime_ns());
    int r = file_replace_at(dir, "workspace.json", text, (size_t)n, 0600, true);
    return r < 0 ? err_sys(e, -r, "cannot make workspace '%s'", name) : 0;
}

static int ensure(const struct store *s, const char *name, struct err *e)
{
    struct workspace w;
    AUTO_CLOSE int all = open_all(s, e);
    if (all < 0)
        return all;
    int r = load(all, name, &w);
    if (r == -ENOENT)
        return make(all, name, e);
    return r < 0 ? err_sys(e, -r, "cannot read workspace '%s'", name) : 0;
}

int workspace_settle(const struct store *s, struct sandbox_spec *spec, struct err *e)
{
    struct spec_workspace *w = &spec->workspace;
    int r = w->name ? ensure(s, w->name, e) : 0;
    if (r < 0 || w->mode != WORKSPACE_FUSE || (!w->name && !w->path))
        return r;
    AUTO_FREE char *path = w->name ? workspace_path(s, w->name) : NULL;
    AUTO_FREE char *real = path ? realpath(path, NULL) : NULL; /* MSB_HOME may be a link */
    if (w->name && !real)
        return err_sys(e, errno, "cannot open workspace '%s'", w->name);
    struct spec_mount m = {
        .kind = MOUNT_BIND, .guest = (char *)WORKSPACE_GUEST_PATH, .source = real ? real : w->path};
    r = spec_add_mount(spec, &m, e);
    if (r == 0)
        spec_protect_mounts(spec);
    return r;
}

int workspace_open(const struct store *s, const char *name, struct workspace *ret, struct err *e)
{
    int r = spec_check_workspace(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int all = open_all(s, e);
    if (all < 0)
        return all;
    r = load(all, name, ret);
    if (r == -ENOENT)
        return err_set(e, ENOENT, "workspace not found: %s", name);
    return r < 0 ? err_sys(e, -r, "cannot read workspace '%s'", name) : 0;
}

int workspace_dir_open(const struct store *s, const char *name, struct err *e)
{
    AUTO_CLOSE int all = open_all(s, e);
    if (all < 0)
        return all;
    int fd = openat(all, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? err_sys(e, errno, "cannot open workspace '%s'", name) : fd;
}

char *workspace_path(const struct store *s, const char *name)
{
    char *path;
    return asprintf(&path, "%s/workspaces/%s/data", s->home, name) < 0 ? NULL : path;
}

uint64_t workspace_used(const struct store *s, const char *name)
{
    AUTO_FREE char *path = workspace_path(s, name);
    int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    return fd < 0 ? 0 : tree_used(fd);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct workspace *)a)->name, ((const struct workspace *)b)->name);
}

int workspace_list(const struct store *s, struct workspace **ret, size_t *n, struct err *e)
{
    *ret = NULL;
    *n = 0;
    int fd = open_all(s, e);
    if (fd < 0)
        return fd;
    AUTO_CLOSEDIR DIR *d = fdopendir(fd);
    if (!d) {
        int r = err_sys(e, errno, "cannot read %s/workspaces", s->home);
        (void)close(fd);
        return r;
    }
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        struct workspace w;
        if (spec_check_workspace(entry->d_name, NULL) < 0 || load(dirfd(d), entry->d_name, &w) < 0)
            continue;
        struct workspace *more = reallocarray(*ret, *n + 1, sizeof(*more));
        if (!more) {
            free(*ret);
            return err_oom(e);
        }
        more[(*n)++] = w;
        *ret = more;
    }
    if (*n)
        qsort(*ret, *n, sizeof(**ret), by_name);
    return 0;
}

/* --- removal --------------------------------------------------------------------------------- */

static int check_free(const struct store *s, const char *name, struct err *e)
{
    struct sandbox *list;
    size_t n;
    int r = store_list_whole(s, &list, &n, e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < n; i++)
        if (list[i].spec.workspace.name && strcmp(list[i].spec.workspace.name, name) == 0) {
            r = err_set(e, EBUSY, "workspace '%s' belongs to sandbox '%s'", name,
                        list[i].spec.name);
            err_hint(e, "remove the sandbox first: msb rm %s", list[i].spec.name);
        }
    sandbox_list_free(list, n);
    return r;
}

int workspace_remove(const struct store *s, const char *name, struct err *e)
{
    struct workspace w;
    AUTO_CLOSE int held = volume_lock_all(s, e);
    int r = held < 0 ? held : workspace_open(s, name, &w, e);
    if (r == 0)
        r = check_free(s, name, e);
    AUTO_CLOSE int all = r < 0 ? -1 : open_all(s, e);
    if (r < 0 || all < 0)
        return r < 0 ? r : all;
    /* First what makes it one: a removal that dies leaves no half of a workspace. */
    char file[SPEC_NAME_MAX + 32];
    (void)snprintf(file, sizeof(file), "%s/workspace.json", name);
    r = unlinkat(all, file, 0) < 0 && errno != ENOENT ? -errno : remove_tree_at(all, name);
    return r < 0 ? err_sys(e, -r, "cannot remove workspace '%s'", name) : 0;
}
