/* GET and PUT: whole trees, by descriptors.
 *
 * Nothing below the first path is ever looked up by more than one component, and never through a
 * link: a process that moves directories meanwhile can change what is copied, but not make the copy
 * leave the tree.
 */
#include "agent/fileop.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <unistd.h>

enum { CHILD_FD_MIN = 3 };
enum { MAGIC_PROC = 0x9fa0, MAGIC_SYS = 0x62656572, MAGIC_CGROUP2 = 0x63677270 };

static struct file_attr attr;

/* --- GET --- */

struct getting {
    struct fchan *c;
    struct err *e;
    uint32_t flags;
    uint64_t left; /* entries until the limit */
    int depth;
};

static int get_entry(struct getting *g, int dirfd, const char *path, const char *name, int at,
                     dev_t parent);

static int put_entry(struct getting *g, const char *name)
{
    if (g->left-- == 0)
        return err_set(g->e, E2BIG, "too many files");
    (void)snprintf(attr.name, sizeof(attr.name), "%s", name);
    attr.has |= FILE_HAS_NAME;
    fchan_put_attr(g->c, PROTO_FILE_ENTRY, &attr);
    return fchan_relieve(g->c);
}

/* At most the announced size: a file that grows while being read might never end. */
static int get_data(struct getting *g, int fd, uint64_t size, const char *name)
{
    while (size) {
        ssize_t n = fchan_send_from(g->c, fd, size);
        if (n == -ECONNRESET)
            return -ECONNRESET;
        if (n < 0)
            return err_sys(g->e, (int)-n, "%s", name);
        if (n == 0)
            return 0;
        size -= (uint64_t)n;
    }
    return 0;
}

/* Files in /proc and /sys report size 0 whatever they contain: only reading shows it. */
static int get_unsized(struct getting *g, int fd, const char *name)
{
    static uint8_t all[256 * 1024];
    size_t n = 0;
    ssize_t k = 0;
    while (n < sizeof(all) && (k = read(fd, all + n, sizeof(all) - n)) > 0)
        n += (size_t)k;
    if (k < 0 && n == 0 && errno != EAGAIN)
        return err_sys(g->e, errno, "%s", name);
    attr.size = n;
    int r = put_entry(g, name);
    for (size_t at = 0; r == 0 && at < n; at += PROTO_DATA_MAX) {
        if (proto_put(&g->c->tx, PROTO_FILE_DATA, all + at, MIN(n - at, (size_t)PROTO_DATA_MAX)) <
            0)
            return -ENOMEM;
        r = fchan_relieve(g->c);
    }
    return r;
}

static int get_file(struct getting *g, int dirfd, const char *path, const char *name, int at)
{
    struct stat st;
    if (g->flags & FILE_NO_DATA)
        return put_entry(g, name);
    AUTO_CLOSE int fd = open_regular(dirfd, path, at ? O_NOFOLLOW : 0, &st);
    if (fd == -ENOENT || fd == -ELOOP || fd == -EINVAL || fd == -EISDIR)
        return 0; /* gone, or replaced since we looked */
    if (fd < 0)
        return err_sys(g->e, -fd, "%s", name);
    file_attr_of(&attr, &st);
    if (attr.size == 0)
        return get_unsized(g, fd, name);
    int r = put_entry(g, name);
    return r < 0 ? r : get_data(g, fd, (uint64_t)st.st_size, name);
}

/* A copy of a tree that contains /proc or /sys has these directories, but not their content. */
static bool is_kernel_fs(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 &&
           (fs.f_type == MAGIC_PROC || fs.f_type == MAGIC_SYS || fs.f_type == MAGIC_CGROUP2);
}

/* Takes fd. */
static int get_children(struct getting *g, int fd, const char *name, dev_t dev)
{
    AUTO_CLOSEDIR DIR *d = dir_take(fd);
    if (!d)
        return err_sys(g->e, errno, "%s", name);
    if (++g->depth > PROTO_DEPTH_MAX)
        return err_set(g->e, ELOOP, "%s: directories are nested too deeply", name);
    const char *child;
    while ((child = fileop_next_name(d))) {
        int r = get_entry(g, dirfd(d), child, child, AT_SYMLINK_NOFOLLOW, dev);
        if (r < 0)
            return r;
    }
    if (errno)
        return err_sys(g->e, errno, "%s", name);
    g->depth--;
    return 0;
}

static int get_dir(struct getting *g, int dirfd, const char *path, const char *name, int at,
                   dev_t parent)
{
    struct stat st;
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK | (at ? O_NOFOLLOW : 0);
    AUTO_CLOSE int fd = openat(dirfd, path, flags);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return 0; /* gone, or replaced since we looked */
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(g->e, errno, "%s", name);
    file_attr_of(&attr, &st);
    int r = put_entry(g, name);
    bool leave_out = g->depth > 0 && st.st_dev != parent && is_kernel_fs(fd);
    if (r == 0 && !leave_out)
        r = get_children(g, steal_fd(&fd), name, st.st_dev);
    if (r == 0)
        fchan_put_attr(g->c, PROTO_FILE_LEAVE, NULL);
    return r;
}

static int get_entry(struct getting *g, int dirfd, const char *path, const char *name, int at,
                     dev_t parent)
{
    int r = entry_attr(dirfd, path, at, &attr);
    if (r == -ENOENT && g->depth > 0)
        return 0;
    if (r < 0)
        return err_sys(g->e, -r, "%s", path);
    if (S_ISDIR(attr.mode))
        return get_dir(g, dirfd, path, name, at, parent);
    if (S_ISREG(attr.mode))
        return get_file(g, dirfd, path, name, at);
    return put_entry(g, name); /* a link, or something that only has a name */
}

/* The name of the first entry: the last component of the path, or "root" for /. */
static const char *last_component(const char *path, char *to)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/')
        start--;
    (void)snprintf(to, PROTO_NAME_MAX + 1, "%.*s", (int)MIN(n - start, (size_t)PROTO_NAME_MAX),
                   path + start);
    return file_name_ok(to) ? to : "root";
}

int fileop_get(struct fchan *c, const struct file_req *q, struct err *e)
{
    char buf[PROTO_NAME_MAX + 1];
    struct getting g = {.c = c, .e = e, .flags = q->flags};
    g.left = q->has & FILE_HAS_LIMIT ? q->limit : UINT64_MAX;
    int at = q->flags & FILE_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW;
    int r = get_entry(&g, AT_FDCWD, q->path, last_component(q->path, buf), at, 0);
    if (r == 0)
        fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return r;
}

/* --- PUT --- */

/* Attributes that a directory gets when it is complete. */
struct put_dir {
    int fd;
    bool made;
    uint32_t has, mode, uid, gid;
    int64_t mtime_ns;
};

struct putting {
    struct fchan *c;
    struct err *e;
    bool owner;
    int depth; /* dirs[depth] is where entries go */
    struct put_dir dirs[PROTO_DEPTH_MAX + 1];
    int fd; /* the current file, or -1 */
    char temp[TEMP_NAME_MAX];
};

static int put_error(struct putting *p, int code, const char *name)
{
    return err_sys(p->e, code, "%s", name);
}

static int set_owner(struct putting *p, int fd, uint32_t has, uint32_t uid, uint32_t gid)
{
    if (!p->owner || !(has & FILE_HAS_UID) || !(has & FILE_HAS_GID))
        return 0;
    return fchown(fd, uid, gid) < 0 ? -errno : 0;
}

static int set_mtime(int fd, uint32_t has, int64_t ns)
{
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, file_timespec(ns)};
    return has & FILE_HAS_MTIME && futimens(fd, t) < 0 ? -errno : 0;
}

/* Replaces whatever has that name, except a directory. A mount point cannot be replaced: the file
 * mounted there is overwritten instead. */
static int move_into_place(struct putting *p, int dirfd, const char *name)
{
    if (renameat(dirfd, p->temp, dirfd, name) == 0)
        return 0;
    if (errno != EBUSY || p->fd < 0)
        return -errno;
    struct stat st;
    AUTO_CLOSE int from = open_regular(dirfd, p->temp, O_NOFOLLOW, &st);
    AUTO_CLOSE int to =
        openat(dirfd, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0 || to < 0)
        return -EBUSY;
    ssize_t n;
    while ((n = sendfile(to, from, NULL, 1 << 20)) > 0)
        ;
    if (n < 0)
        return -errno;
    (void)unlinkat(dirfd, p->temp, 0);
    return 0;
}

static void forget_temp(struct putting *p)
{
    if (p->temp[0])
        (void)unlinkat(p->dirs[p->depth].fd, p->temp, 0);
    p->temp[0] = '\0';
    close_fd(&p->fd);
}

/* Without a name, where the file system supports that: an unfinished file is never seen, and never
 * left behind. */
static int open_new(struct putting *p, int dirfd, mode_t mode)
{
    p->fd = openat(dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode & 0777);
    if (p->fd >= 0)
        return 0;
    temp_name(p->temp);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    p->fd = openat(dirfd, p->temp, flags, mode & 0777);
    if (p->fd < 0) {
        p->temp[0] = '\0';
        return -errno;
    }
    return 0;
}

static int give_name(struct putting *p, int dirfd, const char *name)
{
    char self[32];
    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", p->fd);
    if (!p->temp[0]) {
        if (linkat(AT_FDCWD, self, dirfd, name, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        if (errno != EEXIST)
            return -errno;
        temp_name(p->temp);
        if (linkat(AT_FDCWD, self, dirfd, p->temp, AT_SYMLINK_FOLLOW) < 0) {
            p->temp[0] = '\0';
            return -errno;
        }
    }
    return move_into_place(p, dirfd, name);
}

/* Receives the file that *a describes. On success *f is the first frame after its data. */
static int put_file(struct putting *p, const struct file_attr *a, struct proto_frame *f)
{
    int dirfd = p->dirs[p->depth].fd;
    uint64_t left = a->size;
    int r = open_new(p, dirfd, a->has & FILE_HAS_MODE ? a->mode & 07777 : 0644);
    if (r < 0)
        return put_error(p, -r, a->name);
    while ((r = fchan_part(p->c, f)) == 0 && f->type == PROTO_FILE_DATA) {
        if (f->len > left)
            return err_set(p->e, EPROTO, "%s: more data than announced", a->name);
        left -= f->len;
        int w = write_all(p->fd, f->data, f->len);
        if (w < 0)
            return put_error(p, -w, a->name);
    }
    if (r == 0)
        r = set_owner(p, p->fd, a->has, a->uid, a->gid);
    if (r == 0 && (p->owner || a->mode & 07000) && fchmod(p->fd, a->mode & 07777) < 0)
        r = -errno;
    if (r == 0)
        r = set_mtime(p->fd, a->has, a->mtime_ns);
    if (r == 0)
        r = give_name(p, dirfd, a->name);
    if (r < 0)
        return r == -ECONNRESET ? r : put_error(p, -r, a->name);
    p->temp[0] = '\0';
    close_fd(&p->fd);
    return 0;
}

static int put_link(struct putting *p, const struct file_attr *a)
{
    int dirfd = p->dirs[p->depth].fd;
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, file_timespec(a->mtime_ns)};
    if (!(a->has & FILE_HAS_TARGET))
        return put_error(p, EPROTO, a->name);
    temp_name(p->temp);
    if (symlinkat(a->target, dirfd, p->temp) < 0) {
        p->temp[0] = '\0';
        return put_error(p, errno, a->name);
    }
    if (p->owner && a->has & FILE_HAS_UID && a->has & FILE_HAS_GID)
        (void)!fchownat(dirfd, p->temp, a->uid, a->gid, AT_SYMLINK_NOFOLLOW);
    if (a->has & FILE_HAS_MTIME)
        (void)utimensat(dirfd, p->temp, t, AT_SYMLINK_NOFOLLOW);
    int r = move_into_place(p, dirfd, a->name);
    if (r < 0)
        return put_error(p, -r, a->name);
    p->temp[0] = '\0';
    return 0;
}

/* Opens the parent directory of a path below dirfd, following no links; *name is the last
 * component. */
static int open_below(int dirfd, char *path, char **name)
{
    AUTO_CLOSE int fd = fcntl(dirfd, F_DUPFD_CLOEXEC, CHILD_FD_MIN);
    for (char *slash; fd >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        *slash = '\0';
        if (!file_name_ok(path))
            return -EINVAL;
        int next = openat(fd, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close_fd(&fd);
        fd = next;
    }
    if (fd < 0)
        return -errno;
    *name = path;
    return file_name_ok(path) ? steal_fd(&fd) : -EINVAL;
}

/* Regular files only. */
static int put_hard(struct putting *p, struct file_attr *a)
{
    int dirfd = p->dirs[p->depth].fd;
    char none[1] = "", *old = none;
    struct stat st;
    AUTO_CLOSE int from = open_below(p->dirs[0].fd, a->target, &old);
    if (from < 0)
        return put_error(p, -from, a->name);
    if (fstatat(from, old, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return put_error(p, EINVAL, a->name);
    temp_name(p->temp);
    if (linkat(from, old, dirfd, p->temp, 0) < 0) {
        p->temp[0] = '\0';
        return put_error(p, errno, a->name);
    }
    int r = move_into_place(p, dirfd, a->name);
    forget_temp(p); /* rename() does nothing when both names are the same file */
    return r < 0 ? put_error(p, -r, a->name) : 0;
}

/* Anything but a directory is in the way, including a link to one. */
static int enter_dir(struct putting *p, const struct file_attr *a)
{
    int dirfd = p->dirs[p->depth].fd;
    if (p->depth == PROTO_DEPTH_MAX)
        return err_set(p->e, ELOOP, "%s: directories are nested too deeply", a->name);
    bool made = mkdirat(dirfd, a->name, 0700) == 0;
    if (!made && errno != EEXIST)
        return put_error(p, errno, a->name);
    int fd = dir_open_at(dirfd, a->name);
    if (fd == -ENOTDIR)
        return err_set(p->e, ENOTDIR, "%s exists and is not a directory", a->name);
    if (fd < 0)
        return put_error(p, -fd, a->name);
    p->dirs[++p->depth] = (struct put_dir){.fd = fd,
                                           .made = made,
                                           .has = a->has,
                                           .mode = a->has & FILE_HAS_MODE ? a->mode & 07777 : 0755,
                                           .uid = a->uid,
                                           .gid = a->gid,
                                           .mtime_ns = a->mtime_ns};
    return 0;
}

static int leave_dir(struct putting *p)
{
    if (p->depth == 0)
        return err_set(p->e, EPROTO, "more directories left than entered");
    struct put_dir *d = &p->dirs[p->depth--];
    int r = 0;
    if (d->made) {
        r = set_owner(p, d->fd, d->has, d->uid, d->gid);
        if (r == 0 && fchmod(d->fd, d->mode) < 0)
            r = -errno;
        if (r == 0)
            r = set_mtime(d->fd, d->has, d->mtime_ns);
    }
    close_fd(&d->fd);
    return r < 0 ? err_sys(p->e, -r, "cannot set the attributes of a directory") : 0;
}

/* *ahead: *f is already the frame after the entry. */
static int put_one(struct putting *p, struct proto_frame *f, bool *ahead)
{
    *ahead = false;
    if (file_attr_parse(&attr, f) < 0 || !(attr.has & FILE_HAS_NAME))
        return err_set(p->e, EPROTO, "malformed entry");
    if (!(attr.has & FILE_HAS_MODE) || S_ISDIR(attr.mode))
        return enter_dir(p, &attr);
    if (S_ISLNK(attr.mode))
        return put_link(p, &attr);
    if (!S_ISREG(attr.mode))
        return err_set(p->e, EINVAL, "%s: not a file, directory or link", attr.name);
    if (attr.has & FILE_HAS_HARD)
        return put_hard(p, &attr);
    *ahead = true;
    return put_file(p, &attr, f);
}

static int put_all(struct putting *p)
{
    struct proto_frame f;
    int r = fchan_part(p->c, &f);
    while (r == 0 && f.type != PROTO_FILE_END) {
        bool ahead = false;
        if (f.type == PROTO_FILE_ENTRY)
            r = put_one(p, &f, &ahead);
        else if (f.type == PROTO_FILE_LEAVE)
            r = leave_dir(p);
        else
            r = err_set(p->e, EPROTO, "data outside of a file");
        if (r == 0 && !ahead)
            r = fchan_part(p->c, &f);
    }
    return r;
}

int fileop_put(struct fchan *c, const struct file_req *q, struct err *e)
{
    static struct putting p;
    p = (struct putting){.c = c, .e = e, .owner = q->flags & FILE_OWNER, .fd = -1};
    p.dirs[0].fd = open(q->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (p.dirs[0].fd < 0)
        return err_sys(e, errno, "%s", q->path);
    int r = put_all(&p);
    forget_temp(&p);
    if (r == 0 && p.depth > 0)
        r = err_set(e, EPROTO, "a directory was not left");
    p.e = NULL;         /* the first error counts */
    while (p.depth > 0) /* unfinished directories still get their modes and times */
        (void)leave_dir(&p);
    close_fd(&p.dirs[0].fd);
    if (r == 0)
        fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return r;
}
