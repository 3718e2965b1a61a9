#include "store/volume.h"

#include "image/store/upper.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_MAX = 4096, DEPTH_MAX = 256 };
#define DISK "disk.raw"

static const char *const kind_names[] = {[VOLUME_DIR] = "dir", [VOLUME_DISK] = "disk"};

const char *volume_kind_name(enum volume_kind k)
{
    return kind_names[k];
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
    const char *kind = json_string_value(json_object_get(j, "kind"));
    *ret = (struct volume){.kind = kind && strcmp(kind, kind_names[VOLUME_DISK]) == 0 ? VOLUME_DISK
                                                                                      : VOLUME_DIR,
                           .created_ns = (uint64_t)json_integer_value(created),
                           .quota = (uint64_t)json_integer_value(quota),
                           .size = (uint64_t)json_integer_value(json_object_get(j, "size"))};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    json_decref(j);
    return 0;
}

static int save(int dir, const struct volume *v)
{
    json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", v->name, "kind", kind_names[v->kind],
                          "created_ns", (json_int_t)v->created_ns, "quota", (json_int_t)v->quota,
                          "size", (json_int_t)v->size);
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text ? file_replace_at(dir, "volume.json", text, strlen(text), 0600, true) : -ENOMEM;
}

static int make_content(const struct store *s, int dir, struct volume *v, struct err *e)
{
    struct stat st;
    if (v->kind == VOLUME_DIR) {
        if (mkdirat(dir, "data", 0755) < 0 && errno != EEXIST)
            return err_sys(e, errno, "cannot make volume '%s'", v->name);
        return 0;
    }
    (void)unlinkat(dir, DISK, 0); /* of a creation that died */
    AUTO_CLOSE int cache = store_cache_open(s, e);
    int r = cache < 0 ? cache : upper_create(cache, dir, DISK, v->size, e);
    if (r < 0)
        return err_wrap(e, r, "cannot make volume '%s'", v->name);
    if (fstatat(dir, DISK, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, errno, "cannot make volume '%s'", v->name);
    v->size = (uint64_t)st.st_size; /* sizes are rounded up */
    return 0;
}

/* The lock is held, and there is no such volume. */
static int make(const struct store *s, int volumes, struct volume *v, struct err *e)
{
    v->created_ns = realtime_ns();
    if (v->kind == VOLUME_DISK && v->size == 0) {
        (void)err_set(e, EINVAL, "volume '%s' is not there, and a disk needs a size", v->name);
        err_hint(e, "make it first: msb volume create %s --kind disk --size 1G", v->name);
        return -EINVAL;
    }
    if (mkdirat(volumes, v->name, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make volume '%s'", v->name);
    AUTO_CLOSE int dir = openat(volumes, v->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0)
        return err_sys(e, errno, "cannot make volume '%s'", v->name);
    int r = make_content(s, dir, v, e);
    if (r == 0 && (r = save(dir, v)) < 0)
        (void)err_sys(e, -r, "cannot make volume '%s'", v->name);
    if (r < 0)
        (void)remove_tree_at(volumes, v->name);
    return r;
}

static int find(int volumes, const char *name, struct volume *ret, struct err *e)
{
    int r = load(volumes, name, ret);
    if (r == -ENOENT)
        return err_set(e, ENOENT, "volume not found: %s", name);
    return r < 0 ? err_sys(e, -r, "cannot read volume '%s'", name) : 0;
}

/* What is there must be what was asked for. */
static int check_same(const struct volume *v, enum volume_kind kind, uint64_t size, struct err *e)
{
    if (v->kind != kind)
        return err_set(e, EEXIST, "volume '%s' is a %s, not a %s", v->name,
                       v->kind == VOLUME_DISK ? "disk" : "directory",
                       kind == VOLUME_DISK ? "disk" : "directory");
    if (kind == VOLUME_DISK && size &&
        (size + UPPER_SIZE_ALIGN - 1) / UPPER_SIZE_ALIGN != v->size / UPPER_SIZE_ALIGN)
        return err_set(e, EEXIST, "volume '%s' has %llu MiB already; leave size= out", v->name,
                       (unsigned long long)(v->size >> 20));
    return 0;
}

/* *v says what to make; it becomes what is there. */
static int make_or_find(const struct store *s, const char *name, bool fresh, struct volume *v,
                        struct err *e)
{
    struct name_lock l;
    struct volume found;
    AUTO_CLOSE int volumes = open_locked(s, name, &l, e);
    if (volumes < 0)
        return volumes;
    (void)snprintf(v->name, sizeof(v->name), "%s", name);
    int r = load(volumes, name, &found);
    if (r == -ENOENT) {
        r = make(s, volumes, v, e);
    } else if (r < 0) {
        r = err_sys(e, -r, "cannot read volume '%s'", name);
    } else if (fresh) {
        r = err_set(e, EEXIST, "volume already exists: %s", name);
    } else {
        r = check_same(&found, v->kind, v->size, e);
        *v = found;
    }
    name_lock_drop(s, &l, true);
    return r;
}

int volume_create(const struct store *s, const char *name, enum volume_kind kind, uint64_t size,
                  struct err *e)
{
    struct volume v = {.kind = kind};
    *(kind == VOLUME_DISK ? &v.size : &v.quota) = size;
    return make_or_find(s, name, true, &v, e);
}

int volume_ensure(const struct store *s, const struct spec_mount *m, struct volume *ret,
                  struct err *e)
{
    *ret =
        (struct volume){.kind = m->disk ? VOLUME_DISK : VOLUME_DIR, .size = m->disk ? m->size : 0};
    return make_or_find(s, m->source, false, ret, e);
}

static bool names_volumes(const struct sandbox_spec *spec)
{
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (spec->mounts[i].kind == MOUNT_NAMED)
            return true;
    return false;
}

int volume_settle(const struct store *s, struct sandbox_spec *spec, struct err *e)
{
    if (!names_volumes(spec))
        return 0;
    AUTO_CLOSE int volumes = open_all(s, e);
    if (volumes < 0)
        return volumes;
    for (size_t i = 0; i < spec->n_mounts; i++) {
        struct spec_mount *m = &spec->mounts[i];
        struct volume v;
        if (m->kind != MOUNT_NAMED || m->disk || load(volumes, m->source, &v) < 0 ||
            v.kind != VOLUME_DISK)
            continue;
        if (m->quota || m->uid || m->gid || m->cache)
            return err_set(
                e, EINVAL,
                "volume '%s' is a disk: it takes no quota=, uid=, gid= or cache=", m->source);
        m->disk = true;
    }
    return 0;
}

/* --- who uses them --------------------------------------------------------------------------- */

/* Opens the directory of all volumes and locks it, as the header says. */
static int lock_all(const struct store *s, int how, struct err *e)
{
    AUTO_CLOSE int fd = open_all(s, e);
    while (fd >= 0 && flock(fd, how) < 0)
        if (errno != EINTR)
            return err_sys(e, errno, "cannot lock %s/volumes", s->home);
    return steal_fd(&fd);
}

int volume_lock_all(const struct store *s, struct err *e)
{
    return lock_all(s, LOCK_EX, e);
}

int volume_hold(const struct store *s, const struct sandbox_spec *spec, int *ret, struct err *e)
{
    *ret = -1;
    if (!names_volumes(spec) && !spec->workspace.name)
        return 0;
    int fd = lock_all(s, LOCK_SH, e);
    *ret = fd;
    return fd < 0 ? fd : 0;
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

char *volume_path(const struct store *s, const struct volume *v)
{
    char *path;
    const char *what = v->kind == VOLUME_DISK ? DISK : "data";
    return asprintf(&path, "%s/volumes/%s/%s", s->home, v->name, what) < 0 ? NULL : path;
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
    int r = volume_check_name(name, e);
    if (r < 0)
        return r;
    /* After those who are about to mount it, whose specs we would not see yet. They take the lock
     * of one volume while they hold this: so must we, in that order. */
    AUTO_CLOSE int held = lock_all(s, LOCK_EX, e);
    AUTO_CLOSE int volumes = held < 0 ? held : open_locked(s, name, &l, e);
    if (volumes < 0)
        return volumes;
    r = find(volumes, name, &v, e);
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
            return err_oom(e);
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

uint64_t tree_used(int dir_fd)
{
    return add_up(dir_fd, DEPTH_MAX);
}

uint64_t volume_used(const struct store *s, const struct volume *v)
{
    struct stat st;
    AUTO_FREE char *path = volume_path(s, v);
    if (path && v->kind == VOLUME_DISK)
        return lstat(path, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;
    int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    return fd < 0 ? 0 : tree_used(fd);
}
