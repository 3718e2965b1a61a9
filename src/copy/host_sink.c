#include "copy/host.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static struct host_sink *self(struct tree_sink *s)
{
    return (struct host_sink *)s;
}

/* The directory into which entries currently go. */
static int here(const struct host_sink *h)
{
    return h->dirs[h->depth].fd;
}

static int failed(struct err *e, int code, const char *name)
{
    char text[PROTO_NAME_MAX + 1];
    tree_safe_name(name, text, sizeof(text));
    return err_sys(e, code, "cannot write '%s'", text);
}

static void temp_name(struct host_sink *h)
{
    uint64_t r = 0;
    if (getrandom(&r, sizeof(r), 0) != sizeof(r))
        r = (uint64_t)getpid();
    (void)snprintf(h->temp, sizeof(h->temp), ".msb-cp-%012llx",
                   (unsigned long long)(r & 0xffffffffffff));
}

static struct timespec mtime_of(const struct file_attr *a)
{
    return a->has & FILE_HAS_MTIME ? file_timespec(a->mtime_ns)
                                   : (struct timespec){.tv_nsec = UTIME_NOW};
}

/* Owner first: changing it may clear bits of the mode. */
static int set_attributes(const struct host_sink *h, int fd, const struct file_attr *a)
{
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, mtime_of(a)};
    if (h->owner && a->has & FILE_HAS_UID && a->has & FILE_HAS_GID &&
        fchown(fd, a->uid, a->gid) < 0)
        return -errno;
    if (fchmod(fd, a->mode & 0777) < 0)
        return -errno;
    return futimens(fd, t) < 0 ? -errno : 0;
}

/* Renames the temporary name to the final one. */
static int move_into_place(struct host_sink *h, const char *name)
{
    struct stat st;
    if (fstatat(here(h), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return -EISDIR;
    if (renameat(here(h), h->temp, here(h), name) < 0)
        return -errno;
    h->temp_used = false;
    return 0;
}

static void drop_temp(struct host_sink *h)
{
    if (h->temp_used)
        (void)unlinkat(here(h), h->temp, 0);
    h->temp_used = false;
}

/* --- files --- */

static int sink_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct host_sink *h = self(s);
    if (h->merge && h->depth == 0)
        return err_set(e, ENOTDIR, "a file cannot replace a directory");
    h->attr = *a;
    if (h->direct) {
        h->fd =
            openat(here(h), a->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        return h->fd < 0 ? failed(e, errno, a->name) : 0;
    }
    h->fd = openat(here(h), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (h->fd >= 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
        return failed(e, errno, a->name);
    temp_name(h);
    h->fd = openat(here(h), h->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    h->temp_used = h->fd >= 0;
    return h->fd < 0 ? failed(e, errno, a->name) : 0;
}

static int sink_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct host_sink *h = self(s);
    int r = write_all(h->fd, p, n);
    return r < 0 ? failed(e, -r, h->attr.name) : 0;
}

/* Links an unnamed file to its name, if that is free. */
static int give_name(struct host_sink *h)
{
    char path[64];
    if (h->direct)
        return 0;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", h->fd);
    if (!h->temp_used) {
        if (linkat(AT_FDCWD, path, here(h), h->attr.name, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        if (errno != EEXIST)
            return -errno;
        temp_name(h);
        if (linkat(AT_FDCWD, path, here(h), h->temp, AT_SYMLINK_FOLLOW) < 0)
            return -errno;
        h->temp_used = true;
    }
    return move_into_place(h, h->attr.name);
}

static int sink_done(struct tree_sink *s, struct err *e)
{
    struct host_sink *h = self(s);
    int r = set_attributes(h, h->fd, &h->attr);
    if (r == 0)
        r = give_name(h);
    drop_temp(h);
    int fd = steal_fd(&h->fd);
    if (close(fd) < 0 && r == 0)
        r = -errno;
    return r < 0 ? failed(e, -r, h->attr.name) : 0;
}

/* --- links --- */

static int sink_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct host_sink *h = self(s);
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, mtime_of(a)};
    if (h->merge && h->depth == 0)
        return err_set(e, ENOTDIR, "a link cannot replace a directory");
    temp_name(h);
    if (symlinkat(a->target, here(h), h->temp) < 0)
        return failed(e, errno, a->name);
    h->temp_used = true;
    (void)utimensat(here(h), h->temp, t, AT_SYMLINK_NOFOLLOW);
    if (h->owner && a->has & FILE_HAS_UID && a->has & FILE_HAS_GID)
        (void)!fchownat(here(h), h->temp, a->uid, a->gid, AT_SYMLINK_NOFOLLOW);
    int r = move_into_place(h, a->name);
    drop_temp(h);
    return r < 0 ? failed(e, -r, a->name) : 0;
}

/* --- directories --- */

static int sink_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct host_sink *h = self(s);
    if (h->merge && h->depth == 0) {
        h->dirs[1] = (struct host_dir){.fd = fcntl(h->dirs[0].fd, F_DUPFD_CLOEXEC, 3)};
        h->depth = 1;
        return h->dirs[1].fd < 0 ? failed(e, errno, a->name) : 0;
    }
    if (h->depth + 1 == (int)ARRAY_LEN(h->dirs))
        return failed(e, ELOOP, a->name);
    bool made = mkdirat(here(h), a->name, 0700) == 0;
    if (!made && errno != EEXIST)
        return failed(e, errno, a->name);
    AUTO_CLOSE int fd = dir_open_at(here(h), a->name);
    if (fd < 0)
        return failed(e, errno == ELOOP ? ENOTDIR : errno, a->name);
    struct file_attr *copy = made ? malloc(sizeof(*copy)) : NULL;
    if (made && !copy)
        return failed(e, ENOMEM, a->name);
    if (copy)
        *copy = *a;
    h->dirs[++h->depth] = (struct host_dir){.fd = steal_fd(&fd), .made = made, .attr = copy};
    return 0;
}

static int leave(struct host_sink *h)
{
    assert(h->depth > 0);
    struct host_dir *d = &h->dirs[h->depth--];
    int r = d->made ? set_attributes(h, d->fd, d->attr) : 0;
    close_fd(&d->fd);
    free(d->attr);
    return r;
}

static int sink_leave(struct tree_sink *s, struct err *e)
{
    int r = leave(self(s));
    return r < 0 ? err_sys(e, -r, "cannot set the attributes of a directory") : 0;
}

static const struct tree_sink_ops ops = {
    .dir = sink_dir,
    .leave = sink_leave,
    .file = sink_file,
    .data = sink_data,
    .done = sink_done,
    .link = sink_link,
};

void host_sink_begin(struct host_sink *h, int dirfd, bool merge, bool owner)
{
    memset(h, 0, sizeof(*h));
    h->sink.ops = &ops;
    h->merge = merge;
    h->owner = owner;
    h->fd = -1;
    h->dirs[0].fd = dirfd;
}

void host_sink_end(struct host_sink *h)
{
    close_fd(&h->fd);
    drop_temp(h);
    while (h->depth > 0)
        (void)leave(h);
}
