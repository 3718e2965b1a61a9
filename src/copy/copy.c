#include "copy/copy.h"

#include "copy/guest.h"
#include "copy/host.h"
#include "copy/tar.h"
#include "util/beneath.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The destination, with DST's links resolved. */
struct target {
    enum copy_place place;
    bool exists, is_dir;
    char real[PROTO_PATH_MAX + 1]; /* of one that exists */
    const char *name;              /* of the first entry, there */
    char dir[PROTO_PATH_MAX + 1];  /* that it goes into */
};

struct copying {
    const struct copy_end *from, *to;
    const struct copy_options *opt;
    struct tree_progress *p;
    struct err *e;
    bool src_is_dir;
    int src; /* of COPY_BELOW: copies exactly what was examined; else -1 */
    struct target t;
};

static struct file_attr attr;

static bool follow_source(const struct copying *c)
{
    return c->opt->follow || c->from->path.slash;
}

/* --- the two ends --- */

static int below_failed(struct copying *c, int code, const char *path)
{
    if (code == EXDEV)
        return err_set(c->e, EXDEV, "'%s' leads out of the workspace", path);
    if (code == ENOENT)
        return err_set(c->e, ENOENT, "no such file in the workspace: %s", path);
    return err_sys(c->e, code, "cannot copy '%s'", path);
}

static int stat_below(struct copying *c, const char *path, struct stat *st)
{
    c->src = beneath_open(c->from->below, path, O_PATH, true);
    if (c->src < 0 || fstat(c->src, st) < 0)
        return below_failed(c, c->src < 0 ? -c->src : errno, path);
    return 0;
}

static int stat_source(struct copying *c)
{
    const char *path = c->from->path.path;
    uint32_t mode = S_IFDIR;
    if (c->from->kind == COPY_GUEST) {
        uint32_t flags = follow_source(c) ? 0 : FILE_NOFOLLOW;
        int r = files_stat(c->from->files, path, flags, &attr, c->e);
        if (r < 0)
            return r;
        mode = attr.mode;
    } else if (c->from->kind == COPY_HOST) {
        struct stat st;
        if (fstatat(AT_FDCWD, path, &st, follow_source(c) ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
            return err_sys(c->e, errno, "cannot copy '%s'", path);
        mode = st.st_mode;
    } else if (c->from->kind == COPY_BELOW) {
        struct stat st = {0};
        int r = stat_below(c, path, &st);
        if (r < 0)
            return r;
        mode = st.st_mode;
    }
    c->src_is_dir = S_ISDIR(mode);
    if (!S_ISDIR(mode) && !S_ISREG(mode) && !S_ISLNK(mode))
        return err_set(c->e, EINVAL, "'%s' is neither a file, a directory nor a link", path);
    return 0;
}

static int stat_host_target(struct copying *c)
{
    struct target *t = &c->t;
    struct stat st;
    if (stat(c->to->path.path, &st) < 0) {
        if (errno != ENOENT)
            return err_sys(c->e, errno, "cannot copy to '%s'", c->to->path.path);
        return 0;
    }
    t->exists = true;
    t->is_dir = S_ISDIR(st.st_mode);
    AUTO_FREE char *real = realpath(c->to->path.path, NULL);
    if (!real || strlen(real) > PROTO_PATH_MAX)
        return err_sys(c->e, real ? ENAMETOOLONG : errno, "cannot copy to '%s'", c->to->path.path);
    memcpy(t->real, real, strlen(real) + 1);
    return 0;
}

/* The guest's statements about its own paths are only ever sent back to it. */
static int stat_guest_target(struct copying *c)
{
    struct target *t = &c->t;
    int r = files_stat(c->to->files, c->to->path.path, FILE_REAL, &attr, c->e);
    if (r == -ENOENT) {
        err_clear(c->e);
        return 0;
    }
    if (r < 0)
        return r;
    t->exists = true;
    t->is_dir = S_ISDIR(attr.mode);
    memcpy(t->real, attr.has & FILE_HAS_PATH ? attr.path : c->to->path.path, sizeof(t->real));
    return 0;
}

static int stat_target_below(struct copying *c)
{
    struct target *t = &c->t;
    struct stat st;
    AUTO_CLOSE int fd = beneath_open(c->to->below, c->to->path.path, O_PATH, true);
    if (fd == -ENOENT)
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return below_failed(c, fd < 0 ? -fd : errno, c->to->path.path);
    t->exists = true;
    t->is_dir = S_ISDIR(st.st_mode);
    memcpy(t->real, c->to->path.path, sizeof(t->real));
    return 0;
}

static int stat_target(struct copying *c)
{
    if (c->to->kind == COPY_BELOW)
        return stat_target_below(c);
    if (c->to->kind == COPY_GUEST)
        return stat_guest_target(c);
    return c->to->kind == COPY_HOST ? stat_host_target(c) : 0;
}

/* --- deciding --- */

static int decide(struct copying *c)
{
    struct target *t = &c->t;
    struct copy_facts facts = {.src = &c->from->path,
                               .dst = &c->to->path,
                               .src_is_dir = c->src_is_dir,
                               .dst_exists = t->exists,
                               .dst_is_dir = t->is_dir};
    int r = copy_place(&facts, c->e);
    if (r < 0)
        return r;
    t->place = (enum copy_place)r;
    static struct copy_path real;
    if (t->exists && copy_path_parse(&real, t->real, c->e) < 0)
        return -c->e->code;
    if (t->place == PLACE_AS) { /* over the file behind a link, not over the link */
        const struct copy_path *p = t->exists ? &real : &c->to->path;
        memcpy(t->dir, p->parent, sizeof(t->dir));
        t->name = p->name;
    } else {
        memcpy(t->dir, t->real, sizeof(t->dir));
        t->name = t->place == PLACE_IN ? c->from->path.name : "dir";
    }
    return 0;
}

static bool lies_in(const char *path, const char *dir)
{
    size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

/* Between the host and one of its own directories. */
static int check_below(struct copying *c)
{
    bool in = c->to->kind == COPY_BELOW;
    char link[64], dir[PATH_MAX];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", in ? c->to->below : c->from->below);
    ssize_t n = readlink(link, dir, sizeof(dir) - 1);
    AUTO_FREE char *path = realpath(in ? c->from->path.path : c->t.dir, NULL);
    if (n < 0 || !path)
        return 0; /* the copy will report why */
    dir[n] = '\0';
    if (lies_in(path, dir) || (in && lies_in(dir, path)))
        return err_set(c->e, EINVAL, "cannot copy '%s' into itself", c->from->path.path);
    return 0;
}

/* Copying a tree into itself would never end. */
static int check_overlap(struct copying *c)
{
    const struct copy_path *src = &c->from->path;
    if (c->src_is_dir && (c->from->kind == COPY_BELOW || c->to->kind == COPY_BELOW))
        return check_below(c);
    if (!c->src_is_dir || c->from->kind != COPY_GUEST || c->to->kind != COPY_GUEST ||
        strcmp(c->from->files->name, c->to->files->name) != 0)
        return 0;
    int r = files_stat(c->from->files, src->path, FILE_REAL, &attr, c->e);
    if (r < 0)
        return r;
    if (lies_in(c->t.dir, attr.path))
        return err_set(c->e, EINVAL, "cannot copy '%s' into itself", src->path);
    return 0;
}

/* --- doing --- */

static int send_below(struct copying *c, struct tree_sink *sink)
{
    char path[64];
    if (c->src_is_dir)
        return tree_from_host(c->src, ".", false, c->t.name, sink, c->p, c->e);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", c->src);
    return tree_from_host(AT_FDCWD, path, true, c->t.name, sink, c->p, c->e);
}

static int send_all(struct copying *c, struct tree_sink *sink)
{
    const char *path = c->from->path.path;
    switch (c->from->kind) {
    case COPY_HOST:
        return tree_from_host(AT_FDCWD, path, follow_source(c), c->t.name, sink, c->p, c->e);
    case COPY_GUEST:
        return tree_from_guest(c->from->files, path, follow_source(c), c->t.name, sink, c->p, c->e);
    case COPY_BELOW:
        return send_below(c, sink);
    case COPY_STREAM:
    default:
        return tree_from_tar(STDIN_FILENO, sink, c->p, c->e);
    }
}

static int to_guest(struct copying *c, bool merge)
{
    struct guest_sink sink;
    int r = guest_sink_begin(&sink, c->to->files, c->t.dir, merge, c->opt->archive, c->e);
    if (r == 0)
        r = send_all(c, &sink.sink);
    return r < 0 ? r : guest_sink_end(&sink, c->e);
}

static int to_host(struct copying *c, bool merge)
{
    static struct host_sink sink;
    AUTO_CLOSE int fd = c->to->kind == COPY_BELOW
                            ? beneath_dir(c->to->below, c->t.dir, true, true)
                            : open(c->t.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->to->kind == COPY_BELOW && fd < 0)
        return below_failed(c, -fd, c->t.dir);
    if (fd < 0)
        return err_sys(c->e, errno, "cannot copy to '%s'", c->t.dir);
    host_sink_begin(&sink, fd, merge, c->opt->archive && geteuid() == 0);
    int r = send_all(c, &sink.sink);
    host_sink_end(&sink);
    return r;
}

static int to_stream(struct copying *c)
{
    static struct tar_sink sink;
    int r = tar_sink_begin(&sink, STDOUT_FILENO, c->e);
    c->t.name = c->from->path.contents ? "." : c->from->path.name;
    if (r == 0)
        r = send_all(c, &sink.sink);
    if (r == 0)
        r = tar_sink_end(&sink, c->e);
    tar_sink_free(&sink);
    return r;
}

/* An archive is unpacked into a directory; the names are in the archive. */
static int from_stream(struct copying *c)
{
    if (!c->t.is_dir) {
        err_set(c->e, ENOTDIR, "'%s' is not a directory", c->to->path.path);
        err_hint(c->e, "a tar archive on standard input is unpacked into a directory");
        return -ENOTDIR;
    }
    memcpy(c->t.dir, c->t.real, sizeof(c->t.dir));
    return to_guest(c, false);
}

static int copy_all(struct copying *c)
{
    int r = stat_source(c);
    if (r == 0)
        r = stat_target(c);
    if (r < 0)
        return r;
    if (c->to->kind == COPY_STREAM)
        return to_stream(c);
    if (c->from->kind == COPY_STREAM)
        return from_stream(c);
    r = decide(c);
    if (r == 0)
        r = check_overlap(c);
    if (r < 0)
        return r;
    bool merge = c->t.place == PLACE_MERGE;
    return c->to->kind == COPY_GUEST ? to_guest(c, merge) : to_host(c, merge);
}

int copy_run(const struct copy_end *from, const struct copy_end *to, const struct copy_options *opt,
             struct tree_progress *p, struct err *e)
{
    static struct copying c;
    c = (struct copying){.from = from, .to = to, .opt = opt, .p = p, .e = e, .src = -1};
    int r = copy_all(&c);
    close_fd(&c.src);
    return r;
}
