#include "store/named.h"

#include "store/json_file.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { RECORD_MAX = 4096 };

int named_dir_open(const struct store *s, const struct named_kind *k, bool make, struct err *e)
{
    if (make)
        return store_subdir_open(s, k->dir, e);
    int fd = dir_open_at(s->home_fd, k->dir);
    return fd >= 0 || fd == -ENOENT ? fd : err_sys(e, -fd, "cannot open %s/%s", s->home, k->dir);
}

int named_made_open(const struct named_kind *k, int all, const char *name, struct err *e)
{
    int fd = mkdirat(all, name, 0700) < 0 && errno != EEXIST ? -errno : dir_open_at(all, name);
    if (fd < 0)
        return err_sys(e, -fd, "cannot create %s '%s'", k->what, name);
    file_replace_sweep(fd); /* left by an interrupted creation */
    return fd;
}

static void record_path(const struct named_kind *k, const char *name, char out[NAME_MAX])
{
    (void)snprintf(out, NAME_MAX, "%s/%s", name, k->record);
}

int named_record_load(const struct named_kind *k, int all, const char *name, json_t **ret)
{
    char file[NAME_MAX];
    record_path(k, name, file);
    return json_file_load(all, file, RECORD_MAX, ret);
}

static int not_found(const struct named_kind *k, const char *name, struct err *e)
{
    return err_set(e, ENOENT, "%s not found: %s", k->what, name);
}

int named_open(const struct store *s, const struct named_kind *k, const char *name, void *ret,
               struct err *e)
{
    int r = k->check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int all = named_dir_open(s, k, false, e);
    if (all < 0)
        return all == -ENOENT ? not_found(k, name, e) : all;
    r = k->load(all, name, ret);
    if (r == -ENOENT)
        return not_found(k, name, e);
    return r < 0 ? err_sys(e, -r, "cannot read %s '%s'", k->what, name) : 0;
}

/* --- all of them ----------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b); /* names come first: see named.h */
}

/* A process killed while writing leaves no name, but a file; a secret's file contains the value. */
static void sweep(int all, const struct named_kind *k, const char *name)
{
    AUTO_CLOSE int dir = k->record ? dir_open_at(all, name) : -1;
    if (dir >= 0)
        file_replace_sweep(dir);
}

static int list_dir(DIR *d, const struct named_kind *k, void **ret, size_t *n, struct err *e)
{
    AUTO_FREE char *list = NULL;
    const struct dirent *entry;
    size_t count = 0;
    while ((entry = readdir(d))) {
        if (k->check_name(entry->d_name, NULL) < 0)
            continue;
        char *more = reallocarray(list, count + 1, k->size);
        if (!more)
            return err_oom(e);
        list = more;
        if (k->load(dirfd(d), entry->d_name, list + count * k->size) == 0)
            count++;
        else
            sweep(dirfd(d), k, entry->d_name);
    }
    if (count)
        qsort(list, count, k->size, by_name);
    *ret = steal_ptr(&list);
    *n = count;
    return 0;
}

int named_list(const struct store *s, const struct named_kind *k, void **ret, size_t *n,
               struct err *e)
{
    *ret = NULL;
    *n = 0;
    AUTO_CLOSEDIR DIR *d = dir_read_at(s->home_fd, k->dir);
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, errno, "cannot read %s/%s", s->home, k->dir);
    file_replace_sweep(dirfd(d));
    return list_dir(d, k, ret, n, e);
}

/* --- removal --------------------------------------------------------------------------------- */

int named_lock_all(const struct store *s, int op, struct err *e)
{
    AUTO_CLOSE int fd = store_subdir_open(s, "volumes", e);
    while (fd >= 0 && flock(fd, op) < 0)
        if (errno != EINTR)
            return err_sys(e, errno, "cannot lock %s/volumes", s->home);
    return steal_fd(&fd);
}

static int check_unused(const struct store *s, const struct named_kind *k, const char *name,
                        struct err *e)
{
    struct sandbox *list;
    size_t n;
    int r = store_list_whole(s, &list, &n, e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < n; i++)
        if (k->used_by(&list[i].spec, name)) {
            const char *sandbox = list[i].spec.name;
            r = err_set(e, EBUSY, "%s '%s' %s sandbox '%s'", k->what, name, k->use, sandbox);
            err_hint(e, "remove the sandbox first: msb rm %s", sandbox);
        }
    sandbox_list_free(list, n);
    return r;
}

int named_remove(const struct store *s, const struct named_kind *k, const char *name, struct err *e)
{
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    AUTO_FREE void *described = calloc(1, k->size);
    char record[NAME_MAX];
    if (!described)
        return err_oom(e);
    int r = k->check_name(name, e);
    if (r < 0)
        return r;
    /* Waits for processes that are about to use it, as their specs cannot be seen yet. They lock one
     * thing while they hold the lock of all: this is the same order. */
    AUTO_CLOSE int held = named_lock_all(s, LOCK_EX, e);
    r = held < 0 ? held : name_lock_take_kind(s, k->what, name, &lock, e);
    if (r == 0)
        r = named_open(s, k, name, described, e);
    if (r == 0)
        r = check_unused(s, k, name, e);
    AUTO_CLOSE int all = r < 0 ? r : named_dir_open(s, k, true, e);
    if (all < 0)
        return all;
    /* The record first: an interrupted removal leaves nothing that looks complete. A process that
     * fetched a workspace's files for a sandbox that is gone may still be recording the last of
     * them. */
    record_path(k, name, record);
    r = unlinkat(all, record, 0) < 0 && errno != ENOENT ? -errno : remove_tree_patiently(all, name);
    return r < 0 ? err_sys(e, -r, "cannot remove %s '%s'", k->what, name) : 0;
}
