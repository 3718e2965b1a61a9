/* Reading directories. Offsets are the host's own, which are stable as long as the directory
 * exists. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* #syscalls:fs openat getdents64 lseek fsync fdatasync */

/* For a guest that leaves room for entries in the reply to OPENDIR: the reply has all of them. */
#define FOPEN_WHOLE_DIR (1U << 31)
/* An entry's inode number when it is not known, as in libfuse: many programs take 0 to mean no
 * entry. */
#define UNKNOWN_NUMBER 0xffffffffU

enum { UNASKED_MAX = 8192 }; /* bytes of entries in a reply that the guest did not ask for */

struct linux_dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    uint16_t d_reclen;
    uint8_t d_type;
    char d_name[];
};

int op_releasedir(struct fuse_server *s, struct call *c)
{
    const struct fuse_release_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, true);
    if (!h)
        return -EBADF;
    handle_free(s, h);
    return 0;
}

int op_fsyncdir(struct fuse_server *s, struct call *c)
{
    const struct fuse_fsync_in *in = c->arg;
    const struct handle *h = handle_get(s, in->fh, true);
    if (!h)
        return -EBADF;
    if (h->fd < 0)
        return durable_wait(s, c->h.unique);
    if (!durable_waits(s, c->h.unique) &&
        (in->fsync_flags & 1 ? fdatasync(h->fd) : fsync(h->fd)) < 0)
        return -errno;
    return durable_wait(s, c->h.unique);
}

/* --- entries --------------------------------------------------------------------------------- */

/* The three entries of the directory around a single file; around several trees, the first two. */
static const struct linux_dirent64 *next_of_three(struct fuse_server *s, struct handle *h,
                                                  uint64_t off)
{
    const char *names[] = {".", "..", s->file_name};
    struct linux_dirent64 *d = (struct linux_dirent64 *)(void *)h->buf;
    if (off >= ARRAY_LEN(names) || !names[off])
        return NULL;
    size_t len = strlen(names[off]);
    *d = (struct linux_dirent64){
        .d_ino = off + 1,
        .d_off = (int64_t)off + 1,
        .d_reclen = (uint16_t)(sizeof(*d) + len + 1),
        .d_type = off < 2 ? DT_DIR : DT_REG,
    };
    memcpy(d->d_name, names[off], len + 1);
    return d;
}

static bool has_buffer(struct handle *h, int *err)
{
    if (!h->buf && !(h->buf = malloc(DIR_BUF)))
        *err = -ENOMEM;
    return h->buf;
}

/* Reads the next part of the directory. False at the end, or on an error. */
static bool fill_buffer(struct handle *h, int *err)
{
    if (!has_buffer(h, err))
        return false;
    long n = syscall(SYS_getdents64, h->fd, h->buf, (size_t)DIR_BUF);
    if (n < 0)
        *err = -errno;
    h->pos = 0;
    h->len = n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* The entry at offset `off`; NULL at the end, or on an error. */
static const struct linux_dirent64 *entry_at(struct fuse_server *s, struct handle *h, uint64_t off,
                                             int *err)
{
    if (!has_buffer(h, err))
        return NULL;
    if (is_made_up(s, h->inode))
        return next_of_three(s, h, off);
    if (off != h->next) {
        if (lseek(h->fd, (off_t)off, SEEK_SET) < 0) {
            *err = -errno;
            return NULL;
        }
        h->pos = h->len = 0;
        h->next = off;
    }
    if (h->pos >= h->len && !fill_buffer(h, err))
        return NULL;
    return (const struct linux_dirent64 *)(void *)(h->buf + h->pos);
}

static void advance(const struct fuse_server *s, struct handle *h, const struct linux_dirent64 *d)
{
    h->next = (uint64_t)d->d_off;
    if (!is_made_up(s, h->inode))
        h->pos += d->d_reclen;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* The inode number of an entry that was not examined: what stat() would say, if known. The one of
 * the root's ".." is not shown to the guest. */
static uint64_t entry_number(const struct fuse_server *s, const struct handle *h,
                             const struct linux_dirent64 *d)
{
    const struct inode *dir = h->inode;
    if (is_made_up(s, dir))
        return d->d_ino;
    if (is_dots(d->d_name) && (!d->d_name[1] || dir->id == FUSE_ROOT_ID))
        return shown_number(s, dir->dev, dir->ino);
    return numbers_repeat(s, dir->dev) ? UNKNOWN_NUMBER : shown_number(s, dir->dev, d->d_ino);
}

/* Adds it to the reply, unless that would then be longer than `room`. */
static bool put_entry(struct fuse_server *s, struct call *c, const struct handle *h,
                      const struct linux_dirent64 *d, bool plus, size_t room)
{
    size_t head = plus ? sizeof(struct fuse_entry_out) : 0;
    size_t len = strlen(d->d_name);
    size_t size = FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + len);
    if (c->rep_len > room || size > room - c->rep_len)
        return false;
    uint8_t *at = s->rep + c->rep_len;
    memset(at, 0, size);
    /* A name that vanished meanwhile has no attributes; the guest looks it up again if needed. */
    struct fuse_entry_out e = {0};
    if (plus && !is_dots(d->d_name) && make_entry(s, h->inode, d->d_name, &e) < 0)
        e = (struct fuse_entry_out){0};
    struct fuse_dirent out = {.ino = e.nodeid ? e.attr.ino : entry_number(s, h, d),
                              .off = (uint64_t)d->d_off,
                              .namelen = (uint32_t)len,
                              .type = d->d_type};
    if (plus)
        memcpy(at, &e, sizeof(e));
    memcpy(at + head, &out, FUSE_NAME_OFFSET);
    memcpy(at + head + FUSE_NAME_OFFSET, d->d_name, len);
    c->rep_len += size;
    return true;
}

/* How long a reply may be, given the room that the guest has left. */
static size_t reply_room(const struct call *c, size_t most)
{
    return MIN(MIN(most, (size_t)REP_MAX_BYTES), c->q->in_len - sizeof(struct fuse_out_header));
}

/* Adds entries from there on; 1: these are the last, 0: there may be more. */
static int put_entries(struct fuse_server *s, struct call *c, struct handle *h, uint64_t off,
                       bool plus, size_t room)
{
    const struct linux_dirent64 *d;
    int err = 0;
    while ((d = entry_at(s, h, off, &err))) {
        if (!put_entry(s, c, h, d, plus, room))
            return 0;
        off = (uint64_t)d->d_off;
        advance(s, h, d);
    }
    return err < 0 ? err : 1;
}

static int read_entries(struct fuse_server *s, struct call *c, bool plus)
{
    const struct fuse_read_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, true);
    if (!h)
        return -EBADF;
    int r = put_entries(s, c, h, in->offset, plus, reply_room(c, in->size));
    if (c->rep_len)
        return 0;
    return r == 0 ? -EINVAL : MIN(r, 0); /* -EINVAL: not even one fits */
}

/* Opens a directory for reading; through /proc, this works even if it may be read but not
 * searched. */
static int open_dir(struct fuse_server *s, struct inode *i)
{
    char path[PATH_REF_MAX];
    int base = inode_dir_fd(s, i);
    if (base < 0)
        return base;
    int fd = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) {
        path_of(path, base, NULL);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return fd < 0 ? -errno : fd;
}

/* A guest that leaves room for more than the reply also gets the first entries, as with
 * READDIRPLUS. */
int op_opendir(struct fuse_server *s, struct call *c)
{
    struct fuse_open_out *out = call_reply(s, c, sizeof(*out));
    const size_t room = reply_room(c, UNASKED_MAX);
    struct handle *h;
    int fd = is_made_up(s, c->inode) ? -1 : open_dir(s, c->inode);
    if (fd < 0 && !is_made_up(s, c->inode))
        return fd;
    int r = handle_new(s, c->inode, fd, true, &h);
    if (r < 0)
        return r;
    out->fh = h->id;
    if (s->opt.cache == FUSE_CACHE_ALWAYS)
        out->open_flags = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE;
    else if (room > c->rep_len && put_entries(s, c, h, 0, true, room) > 0) {
        out->open_flags = FOPEN_WHOLE_DIR;
        free(h->buf); /* it was read to its end */
        h->buf = NULL;
        h->pos = h->len = 0;
    }
    return 0;
}

int op_readdir(struct fuse_server *s, struct call *c)
{
    return read_entries(s, c, false);
}

int op_readdirplus(struct fuse_server *s, struct call *c)
{
    return read_entries(s, c, true);
}

/* --- entries that are likely to be asked for next -------------------------------------------- */

void ahead_close(struct fuse_server *s)
{
    struct inode *dir = s->ahead.inode;
    close_fd(&s->ahead.fd);
    free(s->ahead.buf);
    s->ahead = (struct handle){.fd = -1};
    if (dir)
        inode_unref(s, dir);
}

static int ahead_open(struct fuse_server *s, struct inode *dir)
{
    if (s->ahead.inode == dir)
        return 0;
    ahead_close(s);
    int fd = open_dir(s, dir);
    if (fd < 0)
        return fd;
    s->ahead.fd = fd;
    s->ahead.inode = dir;
    inode_ref(dir);
    return 0;
}

/* The position of that name in the buffer, or -1. */
static ssize_t ahead_find(const struct handle *h, const char *name)
{
    const struct linux_dirent64 *d;
    for (size_t at = 0; at < h->len; at += d->d_reclen) {
        d = (const struct linux_dirent64 *)(const void *)(h->buf + at);
        if (strcmp(d->d_name, name) == 0)
            return (ssize_t)at;
    }
    return -1;
}

/* The same in the next part of the directory, or (from 0) in its first. */
static ssize_t ahead_read(struct handle *h, const char *name, bool rewind)
{
    int err = 0;
    if (rewind && lseek(h->fd, 0, SEEK_SET) < 0)
        return -1;
    return fill_buffer(h, &err) ? ahead_find(h, name) : -1;
}

void put_entries_ahead(struct fuse_server *s, struct call *c)
{
    struct handle *h = &s->ahead;
    const char *name = c->name[0];
    size_t room = reply_room(c, UNASKED_MAX);
    if (room <= c->rep_len || s->entry_ns == 0 || s->opt.many || is_made_up(s, c->inode) ||
        ahead_open(s, c->inode) < 0)
        return;
    ssize_t own = ahead_find(h, name);
    if (own < 0)
        own = ahead_read(h, name, false);
    if (own < 0)
        own = ahead_read(h, name, true);
    for (size_t at = (size_t)own; own >= 0;) {
        const struct linux_dirent64 *d = (const struct linux_dirent64 *)(void *)(h->buf + at);
        if (at != (size_t)own && !is_dots(d->d_name) && !put_entry(s, c, h, d, true, room))
            return;
        at += d->d_reclen;
        if (at >= h->len)
            at = 0;
        if (at == (size_t)own)
            return;
    }
}
