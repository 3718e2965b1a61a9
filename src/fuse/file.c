/* File contents: OPEN, CREATE, TMPFILE, READ, WRITE, RELEASE, FSYNC, FALLOCATE, LSEEK, copies. */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/iov.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>

/* #syscalls:fs openat preadv pwritev fstat newfstatat fsync fdatasync fallocate lseek
 * copy_file_range close */

enum { COPY_MAX = 64 << 20 };

/* --- opening --------------------------------------------------------------------------------- */

/* Which of the guest's flags apply to the host's file. The guest's kernel handles syncing and
 * direct I/O itself. */
static int host_flags(const struct fuse_server *s, uint32_t flags)
{
    int mode = (int)(flags & O_ACCMODE);
    int keep = (int)(flags & (O_APPEND | O_TRUNC));
    if (s->writeback) { /* pages are read from the file first, and written at their offsets */
        keep &= ~O_APPEND;
        mode = mode == O_WRONLY ? O_RDWR : mode;
    }
    return mode | keep | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
}

static bool wants_writing(uint32_t flags)
{
    return (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
}

static int open_inode(struct fuse_server *s, struct inode *i, uint32_t flags)
{
    char path[PATH_REF_MAX];
    if (S_ISDIR(i->type))
        return -EISDIR;
    if (!S_ISREG(i->type))
        return S_ISLNK(i->type) ? -ELOOP : -ENXIO;
    int base = inode_fd(s, i);
    if (base < 0)
        return base;
    path_of(path, base, NULL);
    bool parts = !wants_writing(flags) && later_in_parts(s, i, path);
    int r = parts ? 0 : later_bring(s, i, path, flags & O_TRUNC);
    if (r < 0)
        return r;
    /* A quota needs to know how much is freed. */
    uint64_t before = flags & O_TRUNC ? quota_before(s, base) : 0;
    int fd = open(path, host_flags(s, flags));
    if (fd < 0 && errno == EACCES && s->writeback && (flags & O_ACCMODE) == O_WRONLY)
        fd = open(path, (host_flags(s, flags) & ~O_ACCMODE) | O_WRONLY);
    if (fd < 0)
        return -errno;
    if (flags & O_TRUNC)
        quota_after(s, fd, before);
    return fd;
}

/* st: the open file's, NULL if not known. */
static int new_file(struct fuse_server *s, struct inode *i, int fd, const struct stat *st,
                    uint32_t flags, struct fuse_open_out *out)
{
    struct handle *h;
    struct stat now;
    bool keep = s->opt.cache == FUSE_CACHE_ALWAYS;
    if (s->opt.cache == FUSE_CACHE_AUTO && (st || stat_fd(s, fd, &now) == 0))
        keep = may_keep_cache(i, st ? st : &now);
    int r = handle_new(s, i, fd, false, &h);
    if (r < 0)
        return r;
    h->writable = (flags & O_ACCMODE) != O_RDONLY;
    out->fh = h->id;
    out->open_flags = s->opt.cache == FUSE_CACHE_NONE ? FOPEN_DIRECT_IO
                      : keep                          ? FOPEN_KEEP_CACHE
                                                      : 0;
    return 0;
}

int op_open(struct fuse_server *s, struct call *c)
{
    const struct fuse_open_in *in = c->arg;
    struct fuse_open_out *out = call_reply(s, c, sizeof(*out));
    struct stat st;
    if (s->opt.read_only && wants_writing(in->flags))
        return -EROFS;
    if (s->handles_used >= s->opt.files_max)
        return -EMFILE;
    AUTO_CLOSE int fd = open_inode(s, c->inode, in->flags);
    if (fd < 0)
        return fd;
    if (in->open_flags & FUSE_OPEN_KILL_SUIDGID && stat_fd(s, fd, &st) == 0)
        (void)kill_set_id(s, fd, &st);
    return new_file(s, c->inode, steal_fd(&fd), NULL, in->flags, out);
}

/* Opens a file that already exists, unknown to the guest. Only regular files are opened: a name
 * that leads elsewhere, or to a device, is an error before that. */
static int open_existing(struct fuse_server *s, struct inode *parent, const char *name,
                         uint32_t flags)
{
    struct stat st;
    struct inode *i = NULL;
    int dir = inode_dir_fd(s, parent);
    if (dir < 0)
        return dir;
    if (stat_at(s, dir, name, &st) < 0)
        return -errno;
    int r = inode_find(s, parent, name, &st, &i);
    if (r < 0)
        return r;
    i->lookups++;
    int fd = open_inode(s, i, flags);
    inode_forget(s, i, 1);
    return fd;
}

static int create_new(int dir, const char *name, int flags, uint32_t mode)
{
    int fd = openat(dir, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    return fd < 0 ? -errno : fd;
}

/* The entry of a file that was just created, and is open. */
static int entry_of_new(struct fuse_server *s, struct call *c, int fd, const struct owner *o,
                        struct stat *st)
{
    if (stat_fd(s, fd, st) < 0)
        return -errno;
    int r = owner_store_new(s, fd, NULL, st, o);
    if (r < 0 || (r > 0 && stat_fd(s, fd, st) < 0))
        return r < 0 ? r : -errno;
    if (s->opt.quota)
        s->used += (uint64_t)st->st_blocks * 512;
    return fill_entry(s, c->inode, c->name[0], st, o,
                      call_reply(s, c, sizeof(struct fuse_entry_out)));
}

int op_create(struct fuse_server *s, struct call *c)
{
    const struct fuse_create_in *in = c->arg;
    struct owner o = {0};
    struct stat st;
    bool made = true;
    int dir = new_owner(s, c->inode, &c->h, in->mode, false, &o);
    if (dir < 0)
        return dir;
    if (s->handles_used >= s->opt.files_max)
        return -EMFILE;
    int r = quota_check(s, 1);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = create_new(dir, c->name[0], host_flags(s, in->flags & ~(uint32_t)O_TRUNC),
                                   owner_host_mode(s, S_IFREG, o.mode));
    if (fd == -EEXIST && !(in->flags & O_EXCL)) {
        made = false;
        fd = open_existing(s, c->inode, c->name[0], in->flags);
    }
    if (fd < 0)
        return fd;
    r = made ? entry_of_new(s, c, fd, &o, &st) : reply_new_entry(s, c, c->inode, c->name[0], NULL);
    if (r < 0)
        return r;
    struct fuse_entry_out entry;
    memcpy(&entry, s->rep, sizeof(entry));
    struct fuse_open_out open_out = {0};
    struct inode *i = inode_get(s, entry.nodeid);
    r = new_file(s, i, steal_fd(&fd), made ? &st : NULL, in->flags, &open_out);
    if (r < 0) {
        inode_forget(s, i, 1);
        return r;
    }
    memcpy(s->rep + sizeof(entry), &open_out, sizeof(open_out));
    c->rep_len = sizeof(entry) + sizeof(open_out);
    put_dir_attr(s, c);
    return 0;
}

/* A file without a name, which LINK may give one later. */
int op_tmpfile(struct fuse_server *s, struct call *c)
{
    const struct fuse_create_in *in = c->arg;
    struct owner o = {0};
    struct stat st;
    struct inode *i = NULL;
    char path[PATH_REF_MAX];
    int dir = new_owner(s, c->inode, &c->h, in->mode, false, &o);
    if (dir < 0)
        return dir;
    if (s->handles_used >= s->opt.files_max)
        return -EMFILE;
    int flags = (host_flags(s, in->flags) & ~(O_ACCMODE | O_TRUNC)) | O_RDWR | O_TMPFILE |
                (int)(in->flags & O_EXCL);
    AUTO_CLOSE int fd = openat(dir, ".", flags, owner_host_mode(s, S_IFREG, o.mode));
    if (fd < 0 || stat_fd(s, fd, &st) < 0)
        return -errno;
    path_of(path, fd, NULL);
    AUTO_CLOSE int base = open(path, O_PATH | O_CLOEXEC);
    if (base < 0)
        return -errno;
    int r = owner_store(s, fd, NULL, &st, &o);
    if (r == 0)
        r = inode_find_new(s, c->inode, base, &st, &i);
    if (r < 0 || !i)
        return r;
    if (i->fd < 0) {
        inode_set_fd(s, i, steal_fd(&base));
        inode_pin(s, i);
    }
    struct fuse_entry_out entry = {.nodeid = i->id, .generation = i->generation};
    fill_attr(s, &st, &o, &entry.attr);
    struct fuse_open_out open_out = {0};
    i->lookups++;
    r = new_file(s, i, steal_fd(&fd), &st, O_RDWR, &open_out);
    if (r < 0) {
        inode_forget(s, i, 1);
        return r;
    }
    (void)call_reply(s, c, sizeof(entry) + sizeof(open_out));
    memcpy(s->rep, &entry, sizeof(entry));
    memcpy(s->rep + sizeof(entry), &open_out, sizeof(open_out));
    return 0;
}

int op_release(struct fuse_server *s, struct call *c)
{
    const struct fuse_release_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, false);
    struct stat st;
    if (!h)
        return -EBADF;
    if (s->opt.quota && h->inode->opens == 1 && stat_fd(s, h->fd, &st) == 0 && st.st_nlink == 0)
        quota_gone(s, &st);
    handle_free(s, h);
    return 0;
}

/* --- data ------------------------------------------------------------------------------------ */

int op_read(struct fuse_server *s, struct call *c)
{
    const struct fuse_read_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, false);
    const size_t head = sizeof(struct fuse_out_header);
    if (!h)
        return -EBADF;
    if (in->offset > (uint64_t)INT64_MAX - in->size)
        return -EINVAL;
    int r = later_bring_part(s, h, in->offset, in->size);
    if (r < 0)
        return r;
    c->direct = true;
    size_t want = MIN((size_t)in->size, c->q->in_len - head);
    while (c->rep_len < want) {
        unsigned k = iov_slice(s->io, ARRAY_LEN(s->io), c->q->in, c->q->n_in, head + c->rep_len,
                               want - c->rep_len);
        ssize_t n = preadv(h->fd, s->io, (int)k, (off_t)(in->offset + c->rep_len));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return c->rep_len ? 0 : -errno;
        if (n == 0)
            break;
        c->rep_len += (size_t)n;
    }
    return 0;
}

static ssize_t write_out(struct fuse_server *s, const struct call *c, const struct handle *h,
                         uint64_t off, size_t len)
{
    const size_t head = sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in);
    size_t done = 0;
    while (done < len) {
        unsigned k =
            iov_slice(s->io, ARRAY_LEN(s->io), c->q->out, c->q->n_out, head + done, len - done);
        ssize_t n = pwritev(h->fd, s->io, (int)k, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return done ? (ssize_t)done : n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int op_write(struct fuse_server *s, struct call *c)
{
    const struct fuse_write_in *in = c->arg;
    const struct handle *h = handle_get(s, in->fh, false);
    size_t have = c->q->out_len - sizeof(struct fuse_in_header) - sizeof(*in);
    uint64_t off = in->offset;
    uint32_t size = in->size, flags = in->write_flags;
    struct stat st;
    if (!h || !h->writable)
        return -EBADF;
    if (size > have || off > (uint64_t)INT64_MAX - size)
        return -EINVAL;
    int r = quota_check_write(s, h->fd, off, size);
    if (r < 0)
        return r;
    if (flags & FUSE_WRITE_KILL_SUIDGID && stat_fd(s, h->fd, &st) == 0)
        (void)kill_set_id(s, h->fd, &st);
    uint64_t before = quota_before(s, h->fd);
    ssize_t n = write_out(s, c, h, off, size);
    quota_after(s, h->fd, before);
    if (n < 0)
        return (int)n;
    struct fuse_write_out *out = call_reply(s, c, sizeof(*out));
    out->size = (uint32_t)n;
    return 0;
}

int op_fsync(struct fuse_server *s, struct call *c)
{
    const struct fuse_fsync_in *in = c->arg;
    const struct handle *h = handle_get(s, in->fh, false);
    if (!h)
        return -EBADF;
    if (!durable_waits(s, c->h.unique) &&
        (in->fsync_flags & 1 ? fdatasync(h->fd) : fsync(h->fd)) < 0)
        return -errno;
    return durable_wait(s, c->h.unique);
}

int op_fallocate(struct fuse_server *s, struct call *c)
{
    const struct fuse_fallocate_in *in = c->arg;
    const struct handle *h = handle_get(s, in->fh, false);
    struct stat st;
    if (!h || !h->writable)
        return -EBADF;
    if (in->offset > INT64_MAX || in->length > INT64_MAX - in->offset)
        return -EFBIG;
    int r = in->mode & FALLOC_FL_PUNCH_HOLE ? 0 : quota_check(s, in->length);
    if (r < 0)
        return r;
    uint64_t before = quota_before(s, h->fd);
    do
        r = fallocate(h->fd, (int)in->mode, (off_t)in->offset, (off_t)in->length) < 0 ? -errno : 0;
    while (r == -EINTR);
    quota_after(s, h->fd, before);
    if (r == 0 && stat_fd(s, h->fd, &st) == 0)
        (void)kill_set_id(s, h->fd, &st);
    return r;
}

/* A file that is not complete has no holes: all of it is data. */
static off_t seek_data_or_hole(int fd, off_t from, int whence, bool whole)
{
    if (whole)
        return lseek(fd, from, whence);
    off_t end = lseek(fd, 0, SEEK_END);
    if (end >= 0 && from >= end) {
        errno = ENXIO;
        return -1;
    }
    return end < 0 || whence == SEEK_HOLE ? end : from;
}

int op_lseek(struct fuse_server *s, struct call *c)
{
    const struct fuse_lseek_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, false);
    if (s->writeback) /* the guest holds data that our file does not have yet */
        return -ENOSYS;
    if (!h)
        return -EBADF;
    if ((in->whence != SEEK_DATA && in->whence != SEEK_HOLE) || in->offset > INT64_MAX)
        return -EINVAL;
    off_t at = seek_data_or_hole(h->fd, (off_t)in->offset, (int)in->whence, later_is_whole(s, h));
    if (at < 0)
        return -errno;
    struct fuse_lseek_out *out = call_reply(s, c, sizeof(*out));
    out->offset = (uint64_t)at;
    return 0;
}

int op_copy_file_range(struct fuse_server *s, struct call *c)
{
    const struct fuse_copy_file_range_in *in = c->arg;
    struct handle *from = handle_get(s, in->fh_in, false);
    const struct handle *to = handle_get(s, in->fh_out, false);
    if (!from || !to || !to->writable)
        return -EBADF;
    if (in->off_in > INT64_MAX || in->off_out > INT64_MAX)
        return -EINVAL;
    size_t len = MIN(in->len, (uint64_t)COPY_MAX);
    int r = later_bring_part(s, from, in->off_in, len);
    if (r == 0)
        r = quota_check_write(s, to->fd, in->off_out, len);
    if (r < 0)
        return r;
    off_t off_in = (off_t)in->off_in, off_out = (off_t)in->off_out;
    uint64_t before = quota_before(s, to->fd);
    ssize_t n = copy_file_range(from->fd, &off_in, to->fd, &off_out, len, 0);
    quota_after(s, to->fd, before);
    if (n < 0)
        return -errno;
    struct fuse_write_out *out = call_reply(s, c, sizeof(*out));
    out->size = (uint32_t)n;
    return 0;
}
