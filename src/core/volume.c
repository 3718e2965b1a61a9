#include "core/volume.h"

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

enum { JSON_MAX = 4096, DEPTH_MAX = 256 };

int volume_check_name(const char *name, struct err *e)
{
    struct err why = {0};
    if (strlen(name) <= VOLUME_NAME_MAX && spec_check_name(name, &why) == 0)
        return 0;
    return err_set(e, EINVAL,
                   "invalid config: volume name must start with an alphanumeric and contain only "
                   "alphanumeric, dots, hyphens, and underscores, at most %d: %.120s",
                   VOLUME_NAME_MAX, name);
}

static int open_all(const struct store *s, struct err *e)
{
    if (mkdirat(s->home_fd, "volumes", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make %s/volumes", s->home);
    int fd = openat(s->home_fd, "volumes", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? err_sys(e, errno, "cannot open %s/volumes", s->home) : fd;
}

/* Opens the directory of all volumes and locks one of them: one operation on a volume at a time, as
 * with sandboxes. */
static int open_locked(const struct store *s, const char *name, struct name_lock *l, struct err *e)
{
    char lock_name[SPEC_NAME_MAX + 1];
    int r = volume_check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int volumes = open_all(s, e);
    if (volumes < 0)
        return volumes;
    (void)snprintf(lock_name, sizeof(lock_name), "volume.%s", name);
    r = name_lock_take(s, lock_name, l, e);
    return r < 0 ? r : steal_fd(&volumes);
}

/* --- one volume ------------------------------------------------------------------------------ */

static int load(int volumes, const char *name, struct volume *ret)
{
    AUTO_FREE char *text = NULL;
    char file[VOLUME_NAME_MAX + 32];
    size_t n;
    (void)snprintf(file, sizeof(file), "%s/volume.json", name);
    int r = file_read_at(volumes, file, JSON_MAX, &text, &n);
    if (r < 0)
        return r;
    json_t *j = json_loadb(text, n, 0, NULL);
    const json_t *created = json_object_get(j, "created_ns"), *quota = json_object_get(j, "quota");
    *ret = (struct volume){.created_ns = (uint64_t)json_integer_value(created),
                           .quota = (uint64_t)json_integer_value(quota)};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    json_decref(j);
    return 0;
}

static int save(int dir, const struct volume *v)
{
    json_t *j = json_pack("{s:s, s:s, s:I, s:I}", "name", v->name, "kind", "dir", "created_ns",
                          (json_int_t)v->created_ns, "quota", (json_int_t)v->quota);
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text ? file_replace_at(dir, "volume.json", text, strlen(text), 0600, true) : -ENOMEM;
}

/* The lock is held, and there is no such volume. */
static int make(int volumes, const char *name, uint64_t quota, struct volume *ret, struct err *e)
{
    struct volume v = {.created_ns = realtime_ns(), .quota = quota};
    (void)snprintf(v.name, sizeof(v.name), "%s", name);
    if (mkdirat(volumes, name, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make volume '%s'", name);
    AUTO_CLOSE int dir = openat(volumes, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0 || (mkdirat(dir, "data", 0755) < 0 && errno != EEXIST))
        return err_sys(e, errno, "cannot make volume '%s'", name);
    int r = save(dir, &v);
    if (r < 0)
        return err_sys(e, -r, "cannot make volume '%s'", name);
    *ret = v;
    return 0;
}

static int find(int volumes, const char *name, struct volume *ret, struct err *e)
{
    int r = load(volumes, name, ret);
    if (r == -ENOENT)
        return err_set(e, ENOENT, "volume not found: %s", name);
    return r < 0 ? err_sys(e, -r, "cannot read volume '%s'", name) : 0;
}

static int make_or_find(const struct store *s, const char *name, uint64_t quota, bool fresh,
                        struct volume *ret, struct err *e)
{
    struct name_lock l;
    AUTO_CLOSE int volumes = open_locked(s, name, &l, e);
    if (volumes < 0)
        return volumes;
    int r = load(volumes, name, ret);
    if (r == -ENOENT)
        r = make(volumes, name, quota, ret, e);
    else if (r < 0)
        r = err_sys(e, -r, "cannot read volume '%s'", name);
    else if (fresh)
        r = err_set(e, EEXIST, "volume already exists: %s", name);
    name_lock_drop(s, &l, true);
    return r;
}

int volume_create(const struct store *s, const char *name, uint64_t quota, struct err *e)
{
    struct volume v;
    return make_or_find(s, name, quota, true, &v, e);
}

int volume_ensure(const struct store *s, const char *name, struct volume *ret, struct err *e)
{
    return make_or_find(s, name, 0, false, ret, e);
}

int volume_open(const struct store *s, const char *name, struct volume *ret, struct err *e)
{
    int r = volume_check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int volumes = open_all(s, e);
    if (volumes < 0)
        return volumes;
    return find(volumes, name, ret, e);
}

char *volume_path(const struct store *s, const char *name)
{
    char *path;
    return asprintf(&path, "%s/volumes/%s/data", s->home, name) < 0 ? NULL : path;
}

/* --- removal --------------------------------------------------------------------------------- */

static bool mounts(const struct sandbox_spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (spec->mounts[i].kind == MOUNT_NAMED && strcmp(spec->mounts[i].source, name) == 0)
            return true;
    return false;
}

static int check_free(const struct store *s, const char *name, struct err *e)
{
    struct sandbox *list;
    size_t n;
    int r = store_list_whole(s, &list, &n, e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < n; i++)
        if (mounts(&list[i].spec, name)) {
            r = err_set(e, EBUSY, "volume '%s' is mounted by sandbox '%s'", name,
                        list[i].spec.name);
            err_hint(e, "remove the sandbox first: msb rm %s", list[i].spec.name);
        }
    sandbox_list_free(list, n);
    return r;
}

int volume_remove(const struct store *s, const char *name, struct err *e)
{
    struct volume v;
    struct name_lock l;
    AUTO_CLOSE int volumes = open_locked(s, name, &l, e);
    if (volumes < 0)
        return volumes;
    int r = find(volumes, name, &v, e);
    if (r == 0)
        r = check_free(s, name, e);
    if (r == 0) {
        /* First what makes it one: a removal that dies leaves no half of a volume. */
        char file[VOLUME_NAME_MAX + 32];
        (void)snprintf(file, sizeof(file), "%s/volume.json", name);
        if (unlinkat(volumes, file, 0) < 0 && errno != ENOENT)
            r = -errno;
        else
            r = remove_tree_at(volumes, name);
        if (r < 0)
            err_sys(e, -r, "cannot remove volume '%s'", name);
    }
    name_lock_drop(s, &l, true);
    return r;
}

/* --- all of them ----------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct volume *)a)->name, ((const struct volume *)b)->name);
}

int volume_list(const struct store *s, struct volume **ret, size_t *n, struct err *e)
{
    *ret = NULL;
    *n = 0;
    int fd = open_all(s, e);
    if (fd < 0)
        return fd;
    AUTO_CLOSEDIR DIR *d = fdopendir(fd);
    if (!d) {
        int r = err_sys(e, errno, "cannot read %s/volumes", s->home);
        (void)close(fd);
        return r;
    }
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        struct volume v;
        if (entry->d_name[0] == '.' || volume_check_name(entry->d_name, NULL) < 0 ||
            load(dirfd(d), entry->d_name, &v) < 0)
            continue;
        struct volume *more = reallocarray(*ret, *n + 1, sizeof(*more));
        if (!more) {
            free(*ret);
            return err_set(e, ENOMEM, "out of memory");
        }
        more[(*n)++] = v;
        *ret = more;
    }
    if (*n)
        qsort(*ret, *n, sizeof(**ret), by_name);
    return 0;
}

/* Takes dir_fd. Guests fill volumes: depth is bounded, links are not followed. */
static uint64_t add_up(int dir_fd, unsigned depth)
{
    uint64_t sum = 0;
    AUTO_CLOSEDIR DIR *d = fdopendir(dir_fd);
    if (!d) {
        (void)close(dir_fd);
        return 0;
    }
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        sum += (uint64_t)st.st_blocks * 512;
        if (!S_ISDIR(st.st_mode) || depth == 0)
            continue;
        int fd = openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            sum += add_up(fd, depth - 1);
    }
    return sum;
}

uint64_t volume_used(const struct store *s, const char *name)
{
    AUTO_FREE char *path = volume_path(s, name);
    int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    return fd < 0 ? 0 : add_up(fd, DEPTH_MAX);
}
