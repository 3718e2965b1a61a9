/* The local side of a workspace, as a tree. A guest may change it meanwhile, and may have chosen
 * all its names. */
#include "image/oci/digest.h"
#include "s3/tree.h"
#include "util/beneath.h"
#include "util/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_MAX = 128 };

struct scan {
    struct s3_scan how;
    struct s3_tree *to;
    struct err *e;
    char path[S3_PATH_MAX + NAME_MAX + 2];
};

static int scan_dir(struct scan *s, int at, const char *name, size_t len, unsigned depth);

static void leave_out(const struct s3_scan *how, const char *path, const char *why)
{
    char text[S3_PATH_MAX + NAME_MAX + 128];
    (void)snprintf(text, sizeof(text), "'%s' is left out: %s", path, why);
    how->warn(how->warn_ctx, text);
}

/* It may have been moved to a place that was already scanned. */
static void lose(const struct s3_scan *how)
{
    if (how->lost)
        *how->lost = true;
}

/* What it hides is not gone, and its contents cannot be replaced by renames. */
static int refuse_mount(const char *path, struct err *e)
{
    (void)err_set(e, EXDEV, "something is mounted on '%s', or above it", path);
    err_hint(e, "unmount it, or leave it out with a line in " IGNORE_FILE);
    return -EXDEV;
}

/* Whether it is a file whose content is still in the bucket, and which is where base has it. */
static bool is_as_marked(int at, const char *name, const struct s3_entry *was, struct s3_entry *a)
{
    char later[LATER_SIZE];
    if (!was || !was->later[0] || was->mode != a->mode)
        return false;
    AUTO_CLOSE int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || !later_get(fd, later) || strcmp(was->later, later) != 0)
        return false;
    memcpy(a->later, later, sizeof(later));
    memcpy(a->sha, was->sha, sizeof(a->sha));
    return true;
}

/* 1: it is gone. */
static int read_link(struct scan *s, int at, const char *name, struct s3_entry *a)
{
    char target[S3_TARGET_MAX + 1];
    ssize_t n = readlinkat(at, name, target, sizeof(target));
    if (n < 0)
        return errno == ENOENT || errno == EINVAL
                   ? 1
                   : err_sys(s->e, errno, "cannot read '%s'", s->path);
    digest_hex_of(target, (size_t)n, a->sha);
    a->mode = 0777;
    return 0;
}

static int add(struct scan *s, const char *path, const struct s3_entry *a)
{
    if (s->to->n >= S3_ENTRIES_MAX)
        return err_set(s->e, E2BIG, "the workspace has more than %d files", S3_ENTRIES_MAX);
    return s3_tree_add(s->to, path, a) ? 0 : err_oom(s->e);
}

/* --- directories whose entries are still to be made -------------------------------------------- */

/* Adds the entries that base has there. */
static int add_unlisted(struct scan *s, size_t len)
{
    const struct s3_tree *base = s->how.base;
    int r = 0;
    for (size_t i = s3_tree_below(base, s->path); r == 0 && i < base->n; i++) {
        struct s3_entry a = base->v[i];
        if (len && (strncmp(a.path, s->path, len) != 0 || a.path[len] != '/'))
            break;
        a.ino = 0;
        a.staged = NULL;
        r = add(s, a.path, &a);
    }
    return r;
}

/* 1: the directory is to be read. */
static int look_at_mark(struct scan *s, int fd, size_t len)
{
    char id[LATER_SIZE];
    if (!later_get(fd, id))
        return 1;
    if (!s->how.base || !s->how.fill)
        return later_missing(s->path, s->e);
    const struct s3_entry *was = len ? s3_tree_find(s->how.base, s->path) : NULL;
    bool here = len ? was && was->kind == S3_KIND_DIR && strcmp(was->later, id) == 0
                    : s->how.base->n && strcmp(id, LATER_ROOT) == 0;
    int r = here ? 0 : s->how.fill(s->how.fill_ctx, fd, s->path, s->e);
    if (r < 0)
        return r;
    if (here || (r == 1 && was && was->kind == S3_KIND_DIR)) {
        if (len)
            memcpy(s->to->v[s->to->n - 1].later, id, sizeof(id));
        return add_unlisted(s, len);
    }
    r = r == 1 ? later_mark(fd, LATER_XATTR, NULL, 0) : 0; /* left by a killed sync */
    return r < 0 ? err_sys(s->e, -r, "cannot write '%s'", s->path) : 1;
}

/* What is ignored is not examined, but the record of what was never fetched must not be lost. */
static bool is_on_record(const struct scan *s, int at, const char *name, struct s3_entry *a)
{
    const struct s3_tree *base = s->how.base;
    const size_t len = strlen(s->path);
    char id[LATER_SIZE];
    if (!base || a->kind != S3_KIND_DIR)
        return base && is_as_marked(at, name, s3_tree_find(base, s->path), a);
    AUTO_CLOSE int fd = beneath_open(at, name, O_RDONLY | O_DIRECTORY, false);
    bool found = fd >= 0 && later_get(fd, id);
    for (size_t i = s3_tree_below(base, s->path); fd >= 0 && !found && i < base->n; i++) {
        if (strncmp(base->v[i].path, s->path, len) != 0 || base->v[i].path[len] != '/')
            break;
        found = base->v[i].later[0];
    }
    return found;
}

/* Takes back the permission that a killed process has left a read-only file (util/later.c). */
static void restore_mode(int at, const char *name, const struct s3_entry *was, struct stat *st)
{
    if (!was || was->mode & S_IWUSR || st->st_mode != (S_IFREG | was->mode | LATER_LENT))
        return;
    struct stat now;
    AUTO_CLOSE int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &now) == 0 && now.st_mode == st->st_mode && fchmod(fd, was->mode) == 0)
        (void)fstat(fd, st);
}

static int visit(struct scan *s, int at, const char *name, size_t len, unsigned depth)
{
    struct stat st;
    struct s3_entry a = {0};
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        lose(&s->how);
        return errno == ENOENT ? 0 : err_sys(s->e, errno, "cannot read '%s'", s->path);
    }
    const struct s3_entry *was = s->how.base ? s3_tree_find(s->how.base, s->path) : NULL;
    restore_mode(at, name, was, &st);
    s3_entry_stat(&a, &st);
    a.kind = S_ISDIR(st.st_mode) ? S3_KIND_DIR : S_ISLNK(st.st_mode) ? S3_KIND_LINK : S3_KIND_FILE;
    if (ignore_covers(s->how.ignore, s->path, a.kind == S3_KIND_DIR) &&
        !is_on_record(s, at, name, &a))
        return 0;
    int r = 0;
    if (S_ISDIR(st.st_mode)) {
        r = add(s, s->path, &a);
        return r < 0 ? r : scan_dir(s, at, name, len, depth + 1);
    }
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) {
        AUTO_CLOSE int fd = was ? beneath_open(at, name, O_PATH, false) : -1;
        if (fd == -EXDEV)
            return refuse_mount(s->path, s->e);
        leave_out(&s->how, s->path, "it is not a file, directory or symbolic link");
        return 0;
    }
    if (was && was->kind == a.kind && was->sha[0] && s3_entry_untouched(was, &st)) {
        memcpy(a.sha, was->sha, sizeof(a.sha));
        memcpy(a.later, was->later, sizeof(a.later));
    } else if (a.kind == S3_KIND_LINK) {
        r = read_link(s, at, name, &a);
    } else {
        a.unread = !is_as_marked(at, name, was, &a);
    }
    if (a.kind == S3_KIND_LINK)
        a.mode = 0777;
    if (r == 1)
        lose(&s->how);
    return r < 0 ? r : r == 1 ? 0 : add(s, s->path, &a);
}

static int scan_dir(struct scan *s, int at, const char *name, size_t len, unsigned depth)
{
    int fd = beneath_open(at, name, O_RDONLY | O_DIRECTORY, false);
    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP) {
        lose(&s->how);
        return 0;
    }
    if (fd == -EXDEV)
        return refuse_mount(s->path, s->e);
    if (fd < 0)
        return err_sys(s->e, -fd, "cannot read directory '%s'", len ? s->path : ".");
    AUTO_CLOSEDIR DIR *d = dir_take(fd);
    if (!d)
        return err_sys(s->e, errno, "cannot read directory '%s'", len ? s->path : ".");
    if (depth > DEPTH_MAX)
        return err_set(s->e, ELOOP, "the workspace has directories more than %d deep", DEPTH_MAX);
    const struct dirent *entry;
    int r = look_at_mark(s, dirfd(d), len);
    if (r <= 0)
        return r;
    r = 0;
    rewinddir(d);
    while (r == 0 && (errno = 0, entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(s->path + len, sizeof(s->path) - len, "%s%s", len ? "/" : "", entry->d_name);
        if (s3_path_ok(s->path))
            r = visit(s, dirfd(d), entry->d_name, strlen(s->path), depth);
        else
            leave_out(&s->how, s->path,
                      "a name in a bucket is UTF-8 text of at most 768 bytes, without control "
                      "characters, and not .msb");
        s->path[len] = '\0';
    }
    return r;
}

int s3_tree_walk(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    AUTO_FREE struct scan *s = calloc(1, sizeof(*s));
    if (!s)
        return err_oom(e);
    *s = (struct scan){.how = *how, .to = &t, .e = e};
    how->ignore->steps = 0; /* the limit is one of each walk, and the plan made after it */
    int r = scan_dir(s, dirfd, ".", 0, 0);
    if (r == 0)
        r = ignore_check(how->ignore, e);
    if (r < 0)
        return r;
    s3_tree_sort(&t);
    *ret = t;
    t = (struct s3_tree){0};
    return 0;
}

/* --- contents -------------------------------------------------------------------------------- */

/* Fetches the content of a file that is still in the bucket. 1: it is left out. */
static int bring(const struct s3_scan *how, int of, const char *path, struct err *e)
{
    if (!how->fill)
        return later_missing(path, e);
    AUTO_CLOSE int fd = later_reopen(of);
    return fd < 0 ? err_sys(e, -fd, "cannot write '%s'", path)
                  : how->fill(how->fill_ctx, fd, path, e);
}

/* Whether it could have the content known at its path: otherwise, its hash is of no use. */
static bool may_be_known(const struct s3_scan *how, const struct s3_entry *a)
{
    const struct s3_entry *was = how->base ? s3_tree_find(how->base, a->path) : NULL;
    if (!how->remote || how->all || (was && was->size == a->size))
        return true;
    const struct s3_entry *there = s3_tree_find(how->remote, a->path);
    return there && there->size == a->size;
}

/* Leaves out a large file: the bucket keeps what both sides had, as if the file were unchanged. 1:
 * there was nothing. */
static int leave_large(const struct s3_scan *how, struct s3_entry *a)
{
    leave_out(how, a->path, "it is larger than 5 GiB");
    const struct s3_entry *was = how->remote && how->base ? s3_tree_find(how->base, a->path) : NULL;
    if (!was)
        return 1;
    char *path = a->path;
    *a = *was;
    a->path = path;
    a->staged = NULL;
    a->later[0] = '\0';
    a->ino = 0;
    return 0;
}

static int gone(const struct s3_scan *how)
{
    lose(how);
    return 1;
}

/* 1: it is gone, or left out. */
static int read_file(int dirfd, const struct s3_scan *how, struct s3_entry *a, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int fd = beneath_open(dirfd, a->path, O_RDONLY | O_NONBLOCK, false);
    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
        return gone(how);
    if (fd == -EXDEV)
        return refuse_mount(a->path, e);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, fd < 0 ? -fd : errno, "cannot read '%s'", a->path);
    if (!S_ISREG(st.st_mode))
        return gone(how);
    int r = later_get(fd, (char[LATER_SIZE]){0}) ? bring(how, fd, a->path, e) : 0;
    if (r != 0)
        return r;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read '%s'", a->path);
    s3_entry_stat(a, &st); /* before it is read, so that a later change is noticed */
    a->unread = false;
    if (a->size > S3_FILE_MAX)
        return leave_large(how, a);
    if (!may_be_known(how, a))
        return 0;
    r = digest_hex_of_fd(fd, a->sha);
    return r < 0 ? err_sys(e, -r, "cannot read '%s'", a->path) : 0;
}

int s3_tree_read(int dirfd, const struct s3_scan *how, struct s3_tree *t, struct err *e)
{
    size_t n = 0;
    int r = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct s3_entry *a = &t->v[i];
        int leaves = r == 0 && a->unread ? read_file(dirfd, how, a, e) : 0;
        r = MIN(leaves, r);
        if (leaves == 1)
            free(a->path);
        else
            t->v[n++] = *a;
    }
    t->n = n;
    return r;
}

int s3_tree_scan(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    int r = s3_tree_walk(dirfd, how, &t, e);
    if (r == 0)
        r = s3_tree_read(dirfd, how, &t, e);
    if (r < 0)
        return r;
    *ret = t;
    t = (struct s3_tree){0};
    return 0;
}
