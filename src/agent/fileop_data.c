/* READ and WRITE: the content of one file. */
#include "agent/fileop.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct file_attr attr;

static int check_regular(int fd, struct stat *st)
{
    if (fstat(fd, st) < 0)
        return -errno;
    if (S_ISREG(st->st_mode))
        return 0;
    return S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL;
}

int open_regular(int dirfd, const char *name, int flags, struct stat *st)
{
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    if (fd < 0)
        return errno == ENXIO ? -EINVAL : -errno; /* a socket */
    int r = check_regular(fd, st);
    return r < 0 ? r : steal_fd(&fd);
}

/* "Invalid argument" would not explain the error. */
static int file_error(struct err *e, int code, const char *path)
{
    if (code == EINVAL)
        return err_set(e, EINVAL, "%s: not a regular file", path);
    return err_sys(e, code, "%s", path);
}

int fileop_read(struct fchan *c, const struct file_req *q, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int fd = open_regular(AT_FDCWD, q->path, 0, &st);
    if (fd < 0)
        return file_error(e, -fd, q->path);
    /* Some files in /proc cannot seek; at 0, there is no need to. */
    if (q->offset && lseek(fd, (off_t)q->offset, SEEK_SET) < 0)
        return err_sys(e, errno, "%s", q->path);
    file_attr_of(&attr, &st);
    fchan_put_attr(c, PROTO_FILE_ENTRY, &attr);
    uint64_t left = q->has & FILE_HAS_LENGTH ? q->length : UINT64_MAX;
    while (left) {
        ssize_t n = fchan_send_from(c, fd, left);
        if (n == -ECONNRESET)
            return -ECONNRESET;
        if (n < 0)
            return err_sys(e, (int)-n, "%s", q->path);
        if (n == 0)
            break;
        left -= (uint64_t)n;
    }
    fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return 0;
}

/* --- write --- */

struct writing {
    int fd;
    const char *path;                              /* of the file to replace, links resolved */
    char temp[PROTO_PATH_MAX + TEMP_NAME_MAX + 2]; /* beside it; "" = written in place */
    bool keep_mode;                                /* keep the mode and owner of `old` */
    struct stat old;
};

static int open_temp(struct writing *w, const char *path)
{
    static char real[PATH_MAX];
    char name[TEMP_NAME_MAX];
    struct stat st;
    w->path = realpath(path, real) ? real : path; /* a link stays a link */
    w->keep_mode = stat(w->path, &w->old) == 0;
    if (w->keep_mode && !S_ISREG(w->old.st_mode))
        return S_ISDIR(w->old.st_mode) ? -EISDIR : -EINVAL;
    const char *slash = strrchr(w->path, '/');
    size_t n = slash ? (size_t)(slash - w->path) + 1 : 0;
    if (!w->path[n])
        return -EISDIR;
    temp_name(name);
    if (snprintf(w->temp, sizeof(w->temp), "%.*s%s", (int)n, w->path, name) >= (int)sizeof(w->temp))
        return -ENAMETOOLONG;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    w->fd = open(w->temp, flags, 0600);
    if (w->fd < 0) {
        int r = -errno;
        w->temp[0] = '\0';
        return r;
    }
    return check_regular(w->fd, &st);
}

static int open_in_place(struct writing *w, const struct file_req *q)
{
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    flags |= q->flags & FILE_EXCL ? O_EXCL : 0;
    flags |= q->flags & FILE_APPEND ? O_APPEND : 0;
    struct stat st;
    w->path = q->path;
    w->fd = open(q->path, flags, q->has & FILE_HAS_MODE ? q->mode & 07777 : 0644);
    if (w->fd < 0)
        return errno == ENXIO ? -EINVAL : -errno;
    int r = check_regular(w->fd, &st);
    if (r < 0 || q->flags & FILE_APPEND)
        return r;
    bool there = q->has & FILE_HAS_OFFSET ? lseek(w->fd, (off_t)q->offset, SEEK_SET) >= 0
                                          : !st.st_size || ftruncate(w->fd, 0) == 0;
    return there ? 0 : -errno;
}

static int open_for(struct writing *w, const struct file_req *q)
{
    int r = q->flags & FILE_PARENTS ? make_parents(q->path) : 0;
    if (r < 0)
        return r;
    if (!(q->flags & FILE_ATOMIC))
        return open_in_place(w, q);
    if (q->flags & FILE_APPEND || q->has & FILE_HAS_OFFSET)
        return -EINVAL;
    struct stat st;
    if (q->flags & FILE_EXCL && lstat(q->path, &st) == 0)
        return -EEXIST;
    return open_temp(w, q->path);
}

static int take_data(struct fchan *c, int fd)
{
    struct proto_frame f;
    for (;;) {
        int r = fchan_part(c, &f);
        if (r < 0 || f.type == PROTO_FILE_END)
            return r;
        if (f.type == PROTO_FILE_DATA && (r = write_all(fd, f.data, f.len)) < 0)
            return r;
    }
}

static int set_attributes(struct writing *w, const struct file_req *q)
{
    bool temp = w->temp[0];
    bool keep = temp && w->keep_mode;
    uid_t uid = q->has & FILE_HAS_UID ? q->uid : keep ? w->old.st_uid : (uid_t)-1;
    gid_t gid = q->has & FILE_HAS_GID ? q->gid : keep ? w->old.st_gid : (gid_t)-1;
    bool asked = q->has & (FILE_HAS_UID | FILE_HAS_GID);
    if ((asked || keep) && fchown(w->fd, uid, gid) < 0 && asked)
        return -errno; /* keeping the owner may fail: not every user can give a file away */
    mode_t mode = keep ? w->old.st_mode & 07777 : 0644;
    if (q->has & FILE_HAS_MODE)
        mode = q->mode & 07777;
    if ((temp || q->has & FILE_HAS_MODE) && fchmod(w->fd, mode) < 0)
        return -errno;
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, file_timespec(q->mtime_ns)};
    if (q->has & FILE_HAS_MTIME && futimens(w->fd, t) < 0)
        return -errno;
    return 0;
}

static int finish_writing(struct writing *w, const struct file_req *q)
{
    int r = set_attributes(w, q);
    if (r == 0 && w->temp[0]) {
        if (rename(w->temp, w->path) < 0)
            return -errno;
        w->temp[0] = '\0';
    }
    return r;
}

int fileop_write(struct fchan *c, const struct file_req *q, struct err *e)
{
    static struct writing w;
    struct stat st;
    w = (struct writing){.fd = -1};
    int r = open_for(&w, q);
    if (r == 0)
        r = take_data(c, w.fd);
    if (r == 0)
        r = finish_writing(&w, q);
    if (r == 0 && fstat(w.fd, &st) < 0)
        r = -errno;
    if (w.temp[0])
        (void)unlink(w.temp);
    close_fd(&w.fd);
    if (r < 0)
        return file_error(e, -r, q->path);
    file_attr_of(&attr, &st);
    fchan_put_attr(c, PROTO_FILE_OK, &attr);
    return 0;
}
