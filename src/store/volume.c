#include "store/volume.h"

#include "image/store/upper.h"
#include "store/json_file.h"
#include "store/named.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/tree_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16 }; /* attempts to add up a tree that is being moved around */
#define DISK "disk.raw"

static const char *const kind_names[] = {[VOLUME_DIR] = "dir", [VOLUME_DISK] = "disk"};

const char *volume_kind_name(enum volume_kind k)
{
    return kind_names[k];
}

/* --- one volume ------------------------------------------------------------------------------ */

static int volume_load(int all, const char *name, void *ret);

static bool mounts_volume(const struct sandbox_spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (spec->mounts[i].kind == MOUNT_NAMED && strcmp(spec->mounts[i].source, name) == 0)
            return true;
    return false;
}

_Static_assert(offsetof(struct volume, name) == 0, "see named.h");
const struct named_kind named_volumes = {
    .what = "volume",
    .dir = "volumes",
    .size = sizeof(struct volume),
    .check_name = volume_check_name,
    .load = volume_load,
    .record = "volume.json",
    .used_by = mounts_volume,
    .use = "is mounted by",
};

static int volume_load(int all, const char *name, void *ret)
{
    AUTO_JSON json_t *j = NULL;
    struct volume *v = ret;
    int r = named_record_load(&named_volumes, all, name, &j);
    if (r < 0)
        return r;
    const char *kind = json_string_value(json_object_get(j, "kind"));
    bool disk = kind && strcmp(kind, kind_names[VOLUME_DISK]) == 0;
    *v = (struct volume){
        .kind = disk ? VOLUME_DISK : VOLUME_DIR,
        .created_ns = (uint64_t)json_integer_value(json_object_get(j, "created_ns")),
        .quota = (uint64_t)json_integer_value(json_object_get(j, "quota")),
        .size = (uint64_t)json_integer_value(json_object_get(j, "size")),
    };
    (void)snprintf(v->name, sizeof(v->name), "%s", name);
    return 0;
}

static int volume_save(int dir, const struct volume *v)
{
    return json_file_save(dir, named_volumes.record,
                          json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", v->name, "kind",
                                    kind_names[v->kind], "created_ns", (json_int_t)v->created_ns,
                                    "quota", (json_int_t)v->quota, "size", (json_int_t)v->size),
                          true);
}

static int make_content(const struct store *s, int dir, struct volume *v, struct err *e)
{
    struct stat st;
    if (v->kind == VOLUME_DIR) {
        if (mkdirat(dir, "data", 0755) < 0 && errno != EEXIST)
            return err_sys(e, errno, "cannot create volume '%s'", v->name);
        return 0;
    }
    (void)unlinkat(dir, DISK, 0); /* left by an interrupted creation */
    AUTO_CLOSE int cache = store_cache_open(s, e);
    int r = cache < 0 ? cache : upper_create(cache, dir, DISK, v->size, true, e);
    if (r < 0)
        return err_wrap(e, r, "cannot create volume '%s'", v->name);
    AUTO_CLOSE int fd = openat(dir, DISK, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fdatasync(fd) < 0 || fstat(fd, &st) < 0) /* before the record says it exists */
        return err_sys(e, errno, "cannot create volume '%s'", v->name);
    v->size = (uint64_t)st.st_size; /* sizes are rounded up */
    return 0;
}

/* The lock is held, and there is no such volume. */
static int volume_make(const struct store *s, int all, struct volume *v, struct err *e)
{
    v->created_ns = realtime_ns();
    if (v->kind == VOLUME_DISK && v->size == 0)
        return err_hinted(
            e, err_set(e, EINVAL, "volume '%s' does not exist, and a disk needs a size", v->name),
            "create it first: msb volume create %s --kind disk --size 1G", v->name);
    AUTO_CLOSE int dir = named_made_open(&named_volumes, all, v->name, e);
    if (dir < 0)
        return dir;
    int r = make_content(s, dir, v, e);
    if (r == 0 && (r = volume_save(dir, v)) < 0)
        (void)err_sys(e, -r, "cannot create volume '%s'", v->name);
    if (r < 0)
        (void)remove_tree_at(all, v->name);
    return r;
}

/* An existing volume must match the request. */
static int check_same(const struct volume *v, enum volume_kind kind, uint64_t size, struct err *e)
{
    if (v->kind != kind)
        return err_set(e, EEXIST, "volume '%s' is a %s, not a %s", v->name,
                       v->kind == VOLUME_DISK ? "disk" : "directory",
                       kind == VOLUME_DISK ? "disk" : "directory");
    if (kind == VOLUME_DISK && size &&
        (size + UPPER_SIZE_ALIGN - 1) / UPPER_SIZE_ALIGN != v->size / UPPER_SIZE_ALIGN)
        return err_set(e, EEXIST, "volume '%s' already has %llu MiB; leave out size=", v->name,
                       (unsigned long long)(v->size >> 20));
    return 0;
}

/* *v says what to create; it becomes what exists. */
static int make_or_find(const struct store *s, const char *name, bool fresh, struct volume *v,
                        struct err *e)
{
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    struct volume found;
    int r = volume_check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int all = named_dir_open(s, &named_volumes, true, e);
    r = all < 0 ? all : name_lock_take_kind(s, named_volumes.what, name, &lock, e);
    if (r < 0)
        return r;
    (void)snprintf(v->name, sizeof(v->name), "%s", name);
    r = volume_load(all, name, &found);
    if (r == -ENOENT)
        return volume_make(s, all, v, e);
    if (r < 0)
        return err_sys(e, -r, "cannot read volume '%s'", name);
    if (fresh)
        return err_set(e, EEXIST, "volume already exists: %s", name);
    r = check_same(&found, v->kind, v->size, e);
    *v = found;
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
    AUTO_CLOSE int all = named_dir_open(s, &named_volumes, false, e);
    if (all < 0)
        return all == -ENOENT ? 0 : all;
    for (size_t i = 0; i < spec->n_mounts; i++) {
        struct spec_mount *m = &spec->mounts[i];
        struct volume v;
        if (m->kind != MOUNT_NAMED || m->disk || volume_load(all, m->source, &v) < 0 ||
            v.kind != VOLUME_DISK)
            continue;
        if (m->quota || m->uid || m->gid || m->cache)
            return err_set(
                e, EINVAL,
                "volume '%s' is a disk, which takes no quota=, uid=, gid= or cache=", m->source);
        m->disk = true;
    }
    return 0;
}

int volume_hold(const struct store *s, const struct sandbox_spec *spec, int *ret, struct err *e)
{
    *ret = -1;
    if (!names_volumes(spec) && !spec->workspace.name)
        return 0;
    *ret = named_lock_all(s, LOCK_SH, e);
    return MIN(*ret, 0);
}

int volume_remove(const struct store *s, const char *name, struct err *e)
{
    return named_remove(s, &named_volumes, name, e);
}

int volume_list(const struct store *s, struct volume **ret, size_t *n, struct err *e)
{
    void *list;
    int r = named_list(s, &named_volumes, &list, n, e);
    *ret = list;
    return r;
}

char *volume_path(const struct store *s, const struct volume *v)
{
    char *path;
    const char *what = v->kind == VOLUME_DISK ? DISK : "data";
    return asprintf(&path, "%s/volumes/%s/%s", s->home, v->name, what) < 0 ? NULL : path;
}

/* --- space ----------------------------------------------------------------------------------- */

static void add(void *ctx, const struct stat *st)
{
    *(uint64_t *)ctx += (uint64_t)st->st_blocks * 512;
}

uint64_t tree_used(const char *path)
{
    uint64_t sum = 0;
    int r = -ESTALE;
    for (unsigned i = 0; path && r == -ESTALE && i < TRIES; i++) {
        int fd = dir_open_at(AT_FDCWD, path);
        sum = 0;
        r = fd < 0 ? fd : tree_walk(fd, add, &sum);
    }
    return sum;
}

uint64_t volume_used(const struct store *s, const struct volume *v)
{
    struct stat st;
    AUTO_FREE char *path = volume_path(s, v);
    if (path && v->kind == VOLUME_DISK)
        return lstat(path, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;
    return tree_used(path);
}
