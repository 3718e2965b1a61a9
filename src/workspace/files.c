#include "workspace/files.h"

#include "copy/host.h"
#include "copy/place.h"
#include "util/array.h"
#include "util/beneath.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/later.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 128 << 10 };

static int failed(struct err *e, int code, const char *path)
{
    if (code == EXDEV)
        return err_set(e, EXDEV, "'%s' leads out of the workspace", path);
    if (code == ENOENT)
        return err_set(e, ENOENT, "no such file in the workspace: %s", path);
    return err_sys(e, code, "cannot access '%s' in the workspace", path);
}

/* --- list ------------------------------------------------------------------------------------ */

struct listing {
    struct workspace_files l;
    size_t cap;
    bool all;
    int depth;
    struct err *e;
};

void workspace_files_free(struct workspace_files *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].path);
        free(l->v[i].target);
    }
    free(l->v);
    *l = (struct workspace_files){0};
}

static int add(struct listing *x, int at, const char *name, const char *path, const struct stat *st)
{
    char target[PROTO_PATH_MAX + 1];
    ssize_t n =
        S_ISLNK(st->st_mode) && name ? readlinkat(at, name, target, sizeof(target) - 1) : -1;
    if (x->l.n == WORKSPACE_FILES_MAX)
        return err_set(x->e, E2BIG, "the workspace has more than %d files", WORKSPACE_FILES_MAX);
    if (ARRAY_GROW(x->l.v, x->l.n, x->cap, 64) < 0)
        return err_oom(x->e);
    struct workspace_file f = {.path = strdup(path),
                               .target = n >= 0 ? strndup(target, (size_t)n) : NULL,
                               .mode = st->st_mode,
                               .uid = st->st_uid,
                               .gid = st->st_gid,
                               .size = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size,
                               .mtime_ns =
                                   (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec};
    x->l.v[x->l.n++] = f;
    return f.path && (n < 0 || f.target) ? 0 : err_oom(x->e);
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int list_dir(struct listing *x, int at, const char *name, const char *path);

static int list_one(struct listing *x, int at, const char *name, const char *dir)
{
    AUTO_FREE char *path = NULL;
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : failed(x->e, errno, name);
    if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", name) < 0)
        return err_oom(x->e);
    int r = add(x, at, name, path, &st);
    return r == 0 && x->all && S_ISDIR(st.st_mode) ? list_dir(x, at, name, path) : r;
}

static int list_dir(struct listing *x, int at, const char *name, const char *path)
{
    struct dirent **names = NULL;
    AUTO_CLOSE int fd = dir_open_at(at, name);
    if (fd == -ENOENT || fd == -ENOTDIR)
        return 0; /* it was one a moment ago */
    int n = fd < 0 ? -1 : scandirat(fd, ".", &names, not_dots, by_name), r = 0;
    if (n < 0)
        return failed(x->e, fd < 0 ? -fd : errno, path);
    if (x->depth++ == PROTO_DEPTH_MAX)
        r = failed(x->e, ELOOP, path);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = list_one(x, fd, names[i]->d_name, path);
        free(names[i]);
    }
    free(names);
    x->depth--;
    return r;
}

/* Without "./", "//" and a slash at the end. */
static char *tidy(const char *path)
{
    char *out = malloc(strlen(path) + 1), *to = out;
    while (out && *path) {
        size_t n = strcspn(path, "/");
        if (n && !(n == 1 && *path == '.')) {
            if (to != out)
                *to++ = '/';
            memcpy(to, path, n);
            to += n;
        }
        path += n + strspn(path + n, "/");
    }
    if (out)
        *to = '\0';
    return out;
}

int workspace_files_list(int data, const char *path, bool all, struct workspace_files *ret,
                         struct err *e)
{
    struct listing x = {.all = all, .e = e};
    struct stat st;
    AUTO_FREE char *name = tidy(path);
    if (!name)
        return err_oom(e);
    AUTO_CLOSE int fd = beneath_open(data, *name ? name : ".", O_PATH, true);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failed(e, fd < 0 ? -fd : errno, path);
    int r = S_ISDIR(st.st_mode) ? list_dir(&x, fd, ".", name) : add(&x, -1, NULL, name, &st);
    if (r < 0)
        workspace_files_free(&x.l);
    else
        *ret = x.l;
    return r;
}

/* --- single files ---------------------------------------------------------------------------- */

int workspace_file_read(int data, const char *path, int to, struct err *e)
{
    struct stat st;
    char later[LATER_SIZE];
    AUTO_FREE char *chunk = malloc(CHUNK);
    AUTO_CLOSE int fd = beneath_open(data, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, true);
    if (!chunk)
        return err_oom(e);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failed(e, fd < 0 ? -fd : errno, path);
    if (!S_ISREG(st.st_mode))
        return failed(e, S_ISDIR(st.st_mode) ? EISDIR : EINVAL, path);
    if (later_get(fd, later))
        return later_missing(path, e);
    for (uint64_t left = (uint64_t)st.st_size; left;) { /* it may grow faster than we read */
        ssize_t n = read(fd, chunk, (size_t)MIN(left, (uint64_t)CHUNK));
        if (n < 0)
            return failed(e, errno, path);
        if (n == 0)
            break;
        left -= (uint64_t)n;
        int r = write_all(to, chunk, (size_t)n);
        if (r < 0)
            return err_sys(e, -r, "cannot write '%s'", path);
    }
    return 0;
}

/* Everything from a descriptor, into the file that the sink has begun. */
static int fill(struct tree_sink *to, int from, struct err *e)
{
    AUTO_FREE char *chunk = malloc(CHUNK);
    if (!chunk)
        return err_oom(e);
    for (;;) {
        ssize_t n = read(from, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "cannot read the new content");
        if (n == 0)
            return to->ops->done(to, e);
        int r = to->ops->data(to, chunk, (size_t)n, e);
        if (r < 0)
            return r;
    }
}

/* The directory that a path is in. */
static int open_parent(int data, const struct copy_path *p, bool make, struct err *e)
{
    int fd = *p->name ? beneath_dir(data, p->parent, true, make) : -EISDIR;
    return fd < 0 ? failed(e, -fd, p->path) : fd;
}

int workspace_file_write(int data, const char *path, int from, struct err *e)
{
    static struct host_sink sink;
    static struct copy_path p;
    struct stat st;
    struct file_attr a = {.has = FILE_HAS_NAME | FILE_HAS_MODE, .mode = S_IFREG | 0644};
    int r = copy_path_parse(&p, path, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = open_parent(data, &p, true, e);
    if (dir < 0)
        return dir;
    if (p.slash)
        return failed(e, EISDIR, path);
    if (fstatat(dir, p.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
        a.mode = st.st_mode;
    memcpy(a.name, p.name, sizeof(a.name));
    host_sink_begin(&sink, dir, false, false);
    r = sink.sink.ops->file(&sink.sink, &a, e);
    if (r == 0)
        r = fill(&sink.sink, from, e);
    host_sink_end(&sink);
    return r;
}

int workspace_file_remove(int data, const char *path, bool all, struct err *e)
{
    static struct copy_path p;
    struct stat st;
    int r = copy_path_parse(&p, path, e);
    AUTO_CLOSE int dir = r < 0 ? r : open_parent(data, &p, false, e);
    if (dir < 0)
        return dir;
    if (fstatat(dir, p.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return failed(e, errno, path);
    if (!S_ISDIR(st.st_mode) && p.slash)
        return failed(e, ENOTDIR, path);
    if (!all && S_ISDIR(st.st_mode))
        return err_hinted(e, err_set(e, EISDIR, "'%s' is a directory", path),
                          "use --recursive to remove it with its contents");
    r = all ? remove_tree_at(dir, p.name) : unlinkat(dir, p.name, 0) < 0 ? -errno : 0;
    return r < 0 ? failed(e, -r, path) : 0;
}
