/* Operations on names and attributes: nothing here reads or writes the content of a file. */
#include "agent/fileop.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Too large for the stack of every function on the way. */
static struct file_attr attr;

static int sys_error(struct err *e, const char *path)
{
    return err_sys(e, errno, "%s", path);
}

void temp_name(char out[TEMP_NAME_MAX])
{
    uint32_t r = 0;
    static uint32_t count;
    if (getrandom(&r, sizeof(r), GRND_NONBLOCK) != sizeof(r))
        r = (uint32_t)getpid() << 16 | (++count & 0xffff);
    (void)snprintf(out, TEMP_NAME_MAX, ".msb-%08x", r);
}

int entry_attr(int dirfd, const char *name, int at_flags, struct file_attr *a)
{
    struct stat st;
    if (fstatat(dirfd, name, &st, at_flags) < 0)
        return -errno;
    file_attr_of(a, &st);
    if (!S_ISLNK(st.st_mode))
        return 0;
    ssize_t n = readlinkat(dirfd, name, a->target, sizeof(a->target) - 1);
    if (n > 0) { /* else it has been replaced since */
        a->target[n] = '\0';
        a->has |= FILE_HAS_TARGET;
    }
    return 0;
}

int fileop_stat(struct fchan *c, const struct file_req *q, struct err *e)
{
    int r =
        entry_attr(AT_FDCWD, q->path, q->flags & FILE_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0, &attr);
    if (r < 0)
        return err_sys(e, -r, "%s", q->path);
    if (q->flags & FILE_REAL) {
        static char real[PATH_MAX];
        if (!realpath(q->path, real))
            return sys_error(e, q->path);
        (void)snprintf(attr.path, sizeof(attr.path), "%s", real);
        attr.has |= FILE_HAS_PATH;
    }
    fchan_put_attr(c, PROTO_FILE_OK, &attr);
    return 0;
}

/* --- list --- */

static int list_one(struct fchan *c, int dirfd, const char *name)
{
    int r = entry_attr(dirfd, name, AT_SYMLINK_NOFOLLOW, &attr);
    if (r < 0)
        attr.has = 0; /* gone, or not accessible: only the name is reported */
    (void)snprintf(attr.name, sizeof(attr.name), "%s", name);
    attr.has |= FILE_HAS_NAME;
    fchan_put_attr(c, PROTO_FILE_ENTRY, &attr);
    return fchan_relieve(c);
}

const char *fileop_next_name(DIR *d)
{
    const struct dirent *de;
    do {
        errno = 0;
        de = readdir(d);
    } while (de && !file_name_ok(de->d_name));
    return de ? de->d_name : NULL;
}

int fileop_list(struct fchan *c, const struct file_req *q, struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_take(open(q->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
    if (!d)
        return sys_error(e, q->path);
    uint64_t most =
        q->has & FILE_HAS_LIMIT ? MIN(q->limit, (uint64_t)PROTO_LIST_MAX) : PROTO_LIST_MAX;
    const char *name;
    bool cut = false;
    for (uint64_t n = 0; !cut && (name = fileop_next_name(d));) {
        if (n++ >= most)
            cut = true;
        else if (list_one(c, dirfd(d), name) < 0)
            return -ECONNRESET;
    }
    if (!cut && errno)
        return sys_error(e, q->path);
    struct proto_writer w;
    proto_begin(&w, &c->tx, PROTO_FILE_OK);
    if (cut)
        proto_u32(&w, F_FILE_CUT, 1);
    (void)proto_end(&w);
    return 0;
}

/* --- directories --- */

int make_parents(const char *path)
{
    char part[PROTO_PATH_MAX + 1];
    size_t n = strlen(path);
    memcpy(part, path, n + 1);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/' || p[-1] == '/')
            continue;
        if (!p[strspn(p, "/")])
            break; /* trailing slashes */
        *p = '\0';
        if (mkdir(part, 0755) < 0 && errno != EEXIST) {
            int code = errno;
            struct stat st;
            if (stat(part, &st) < 0 || !S_ISDIR(st.st_mode)) /* EROFS comes before EEXIST */
                return -code;
        }
        *p = '/';
    }
    return 0;
}

/* 1: the directory exists, and is left unchanged. */
static int make_dir(const struct file_req *q)
{
    mode_t mode = q->has & FILE_HAS_MODE ? q->mode & 07777 : 0755;
    struct stat st;
    bool parents = q->flags & FILE_PARENTS;
    if (parents && stat(q->path, &st) == 0)
        return S_ISDIR(st.st_mode) ? 1 : -EEXIST;
    int r = parents ? make_parents(q->path) : 0;
    if (r < 0)
        return r;
    if (mkdir(q->path, mode) < 0)
        return errno == EEXIST && parents ? 1 : -errno;
    return 0;
}

int fileop_mkdir(struct fchan *c, const struct file_req *q, struct err *e)
{
    int r = make_dir(q);
    if (r < 0)
        return err_sys(e, -r, "%s", q->path);
    uid_t uid = q->has & FILE_HAS_UID ? q->uid : (uid_t)-1;
    gid_t gid = q->has & FILE_HAS_GID ? q->gid : (gid_t)-1;
    /* mkdir() drops the bits beyond rwx. */
    if (r == 0 &&
        (((q->has & (FILE_HAS_UID | FILE_HAS_GID)) && chown(q->path, uid, gid) < 0) ||
         ((q->has & FILE_HAS_MODE) && q->mode & 07000 && chmod(q->path, q->mode & 07777) < 0))) {
        int code = errno;
        (void)rmdir(q->path);
        return err_sys(e, code, "%s", q->path);
    }
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

/* --- remove --- */

struct removal {
    struct err *e;
    int depth;
};

static int remove_below(struct removal *m, int fd, const char *name);

static int remove_name(struct removal *m, int dirfd, const char *name)
{
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return sys_error(m->e, name);
    int fd = dir_open_at(dirfd, name);
    if (fd < 0)
        return err_sys(m->e, fd == -ENOTDIR ? EPERM : -fd, "%s", name);
    int r = remove_below(m, fd, name);
    if (r == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        r = sys_error(m->e, name);
    return r;
}

/* Takes fd. */
static int remove_below(struct removal *m, int fd, const char *name)
{
    AUTO_CLOSEDIR DIR *d = dir_take(fd);
    const char *child;
    int r = 0;
    if (!d)
        return sys_error(m->e, name);
    if (++m->depth > PROTO_DEPTH_MAX)
        return err_set(m->e, ELOOP, "%s: directories are nested too deeply", name);
    while (r == 0 && (child = fileop_next_name(d)))
        r = remove_name(m, dirfd(d), child);
    m->depth--;
    return r;
}

int fileop_remove(struct fchan *c, const struct file_req *q, struct err *e)
{
    struct removal m = {.e = e};
    struct stat st;
    int r = 0;
    if (lstat(q->path, &st) < 0) {
        if (errno != ENOENT || !(q->flags & FILE_FORCE))
            return sys_error(e, q->path);
    } else if (q->flags & FILE_RECURSIVE && S_ISDIR(st.st_mode)) {
        r = remove_name(&m, AT_FDCWD, q->path);
    } else if ((S_ISDIR(st.st_mode) ? rmdir(q->path) : unlink(q->path)) < 0) {
        return sys_error(e, q->path);
    }
    if (r < 0)
        return r;
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

int fileop_sync(struct fchan *c, const struct file_req *q, struct err *e)
{
    AUTO_CLOSE int fd = open(q->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || syncfs(fd) < 0)
        return sys_error(e, q->path);
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

/* --- rename, set, symlink --- */

int fileop_rename(struct fchan *c, const struct file_req *q, struct err *e)
{
    enum { NOREPLACE = 1 }; /* musl defines neither the flag nor the call */
    unsigned flags = q->flags & FILE_EXCL ? NOREPLACE : 0;
    if (syscall(SYS_renameat2, AT_FDCWD, q->path, AT_FDCWD, q->to, flags) < 0)
        return err_sys(e, errno, "cannot rename %s to %s", q->path, q->to);
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

static int set_times(const struct file_req *q, int at)
{
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    if (q->has & FILE_HAS_ATIME)
        t[0] = file_timespec(q->atime_ns);
    if (q->has & FILE_HAS_MTIME)
        t[1] = file_timespec(q->mtime_ns);
    return utimensat(AT_FDCWD, q->path, t, at);
}

/* The owner first: changing it clears mode bits. The times last: the other changes update them. */
int fileop_set(struct fchan *c, const struct file_req *q, struct err *e)
{
    int at = q->flags & FILE_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0;
    uid_t uid = q->has & FILE_HAS_UID ? q->uid : (uid_t)-1;
    gid_t gid = q->has & FILE_HAS_GID ? q->gid : (gid_t)-1;
    struct stat st;
    if (fstatat(AT_FDCWD, q->path, &st, at) < 0)
        return sys_error(e, q->path);
    if (q->has & FILE_HAS_SIZE) {
        if (!S_ISREG(st.st_mode))
            return err_sys(e, EINVAL, "%s", q->path);
        if (truncate(q->path, (off_t)q->size) < 0)
            return sys_error(e, q->path);
    }
    if (q->has & (FILE_HAS_UID | FILE_HAS_GID) && fchownat(AT_FDCWD, q->path, uid, gid, at) < 0)
        return sys_error(e, q->path);
    if (q->has & FILE_HAS_MODE && S_ISLNK(st.st_mode))
        return err_sys(e, EOPNOTSUPP, "%s", q->path);
    if (q->has & FILE_HAS_MODE && chmod(q->path, q->mode & 07777) < 0)
        return sys_error(e, q->path);
    if (q->has & (FILE_HAS_MTIME | FILE_HAS_ATIME) && set_times(q, at) < 0)
        return sys_error(e, q->path);
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

/* Makes the link beside the old file and renames it over: the name always exists. */
static int replace_by_link(const struct file_req *q)
{
    char beside[PROTO_PATH_MAX + TEMP_NAME_MAX + 2], name[TEMP_NAME_MAX];
    const char *slash = strrchr(q->path, '/');
    size_t n = slash ? (size_t)(slash - q->path) + 1 : 0;
    temp_name(name);
    (void)snprintf(beside, sizeof(beside), "%.*s%s", (int)n, q->path, name);
    if (symlink(q->to, beside) < 0)
        return -errno;
    if (rename(beside, q->path) == 0)
        return 0;
    int code = errno;
    (void)unlink(beside);
    return -code;
}

int fileop_symlink(struct fchan *c, const struct file_req *q, struct err *e)
{
    int r = symlink(q->to, q->path) < 0 ? -errno : 0;
    if (r == -EEXIST && q->flags & FILE_FORCE)
        r = replace_by_link(q);
    if (r < 0)
        return err_sys(e, -r, "%s", q->path);
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}
