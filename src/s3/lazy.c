/* Directories that get their entries when they are first accessed (util/later.h).
 *
 * A workspace's first sync creates no files: it marks the workspace's own directory, and the record
 * (s3-base.json) lists all its contents. Before anything, a guest's share server or a later sync,
 * looks into a marked directory, its entries are created: files marked as to be filled, directories
 * marked likewise. A marked directory is not entered until its mark is gone, so the mark is removed
 * last; an interrupted attempt starts over.
 *
 * A marked directory has not been changed locally, and a sync that finds it changed in the bucket
 * creates its entries before doing anything else: so what the record has below it is always right.
 */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

/* --- one directory --------------------------------------------------------------------------- */

static int make_dir(int dir, const char *name, const struct s3_entry *a)
{
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    AUTO_CLOSE int fd = dir_open_at(dir, name);
    if (fd < 0)
        return fd;
    int r = a->later[0] ? later_mark(fd, LATER_XATTR, a->later, LATER_SIZE - 1) : 0;
    return r == 0 && fchmod(fd, a->mode | 0700) < 0 ? -errno : r;
}

/* Whether it is left from an interrupted attempt: it has not been filled. */
static bool is_left_over(int dir, const char *name)
{
    struct stat st;
    char id[LATER_SIZE];
    AUTO_CLOSE int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 &&
           (later_get(fd, id) || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0));
}

/* Nothing should have written to a directory that is not listed yet, but anything found there is
 * kept. */
static int make_way(struct s3_work *w, int dir, const char *name, const struct s3_entry *a)
{
    struct err e = {0};
    if (is_left_over(dir, name))
        return unlinkat(dir, name, 0) < 0 ? -errno : 0;
    return s3_keep_aside(w, dir, name, dir, name, a->path, &e);
}

static int make_file(struct s3_work *w, int dir, const char *name, const struct s3_entry *a)
{
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    AUTO_CLOSE int fd = openat(dir, name, how, a->mode | 0400);
    if (fd < 0 && errno == EEXIST && a->later[0]) {
        int r = make_way(w, dir, name, a);
        if (r < 0)
            return r;
        fd = openat(dir, name, how, a->mode | 0400);
    }
    if (fd < 0)
        return errno == EEXIST ? 0 : -errno;
    int r = s3_later_mark(fd, a);
    if (r == 0 && !a->guessed)
        s3_set_mtime(dir, name, a->mtime_ns);
    return r;
}

static int make_all(struct s3_work *w, int fd, const char *path)
{
    const struct s3_tree *base = &w->base;
    size_t len = strlen(path);
    int r = 0;
    for (size_t i = s3_tree_below(base, path); r == 0 && i < base->n; i++) {
        const struct s3_entry *a = &base->v[i];
        if (len && (strncmp(a->path, path, len) != 0 || a->path[len] != '/'))
            break;
        const char *name = a->path + len + (len > 0);
        if (strchr(name, '/'))
            continue;
        if (a->kind == S3_KIND_DIR)
            r = make_dir(fd, name, a);
        else if (a->kind == S3_KIND_FILE && (a->later[0] || a->size == 0))
            r = make_file(w, fd, name, a);
    }
    return r;
}

int s3_list_dir(struct s3_work *w, int fd, const char *path)
{
    (void)pthread_rwlock_rdlock(&w->base_lock);
    int r = make_all(w, fd, path);
    (void)pthread_rwlock_unlock(&w->base_lock);
    /* Changes to one directory reach the disk in order. */
    return r < 0 ? r : later_mark(fd, LATER_XATTR, NULL, 0);
}

int s3_list_to(struct s3_work *w, const char *path, bool itself, struct err *e)
{
    AUTO_CLOSE int fd = w->unlisted ? dir_open_at(w->data, ".") : -1; /* for our own lock */
    while (fd >= 0) {
        char name[NAME_MAX + 1], id[LATER_SIZE];
        int r = later_get(fd, id) ? s3_later_fill(w, fd, s3_known_in_base, w, NULL, e) : 0;
        if (r < 0)
            return r;
        size_t n = strcspn(path, "/");
        if (n == 0 || n > NAME_MAX || (!path[n] && !itself))
            break;
        (void)snprintf(name, sizeof(name), "%.*s", (int)n, path);
        path += n + (path[n] == '/');
        int next = dir_open_at(fd, name); /* else there is nothing to create */
        close_fd(&fd);
        fd = next;
    }
    return 0;
}

static int list_step(struct s3_work *w, struct s3_step *s, struct err *e)
{
    if (s->result.kind != S3_KIND_DIR || !s->result.later[0])
        return 0;
    s->result.later[0] = '\0';
    return s3_list_to(w, s->path, true, e);
}

int s3_list_all(struct s3_work *w, struct err *e)
{
    int r = s3_list_to(w, "", true, e);
    return r < 0 ? r : s3_work_each(w, list_step, e);
}

/* --- the first sync -------------------------------------------------------------------------- */

bool s3_can_be_lazy(const struct s3_work *w)
{
    if (!w->fresh || !w->remote.tree.n)
        return false;
    for (size_t i = 0; i < w->local.n; i++)
        if (strcmp(w->local.v[i].path, IGNORE_FILE) != 0)
            return false;
    return true;
}

/* The walk preceded the listing: something may have been put here since. */
static bool is_still_empty(const struct s3_work *w)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(w->data, ".");
    const struct dirent *entry = NULL;
    while (d && (errno = 0, entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, IGNORE_FILE) != 0)
            return false;
    return d && errno == 0;
}

int s3_plan_lazily(struct s3_work *w)
{
    if (!is_still_empty(w))
        return -ENOTEMPTY;
    if (fsetxattr(w->data, LATER_XATTR, LATER_ROOT, LATER_SIZE - 1, 0) < 0)
        return -errno;
    for (size_t i = 0; i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        bool dir = s->action == S3_DOWNLOAD && s->remote->kind == S3_KIND_DIR;
        if (!dir && !s3_can_wait(s))
            continue;
        s->result = *s->remote;
        s->result.staged = NULL;
        s->result.mode |= dir ? 0700 : 0400;
        s3_later_plan(w, &s->result);
        w->counts.downloaded += !dir;
    }
    w->lazy = w->unlisted = true;
    /* What base will be, for those who have to look into a directory already. */
    return s3_plan_results(&w->plan, &w->base) < 0 ? -ENOMEM : s3_index_base(w);
}
