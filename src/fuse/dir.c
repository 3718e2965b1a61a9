/* Reading directories. Offsets are the host's own, which are stable as long as the directory is. */
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

struct linux_dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    uint16_t d_reclen;
    uint8_t d_type;
    char d_name[];
};

int op_opendir(struct fuse_server *s, struct call *c)
{
    struct fuse_open_out *out = call_reply(s, c, sizeof(*out));
    struct handle *h;
    char path[PATH_REF_MAX];
    int fd = -1;
    if (!S_ISDIR(c->inode->type))
        return -ENOTDIR;
    if (!is_made_up(s, c->inode)) {
        int base = inode_fd(s, c->inode);
        if (base < 0)
            return base;
        path_of(path, base, NULL);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            return -errno;
    }
    int r = handle_new(s, c->inode, fd, true, &h);
    if (r < 0)
        return r;
    out->fh = h->id;
    if (s->opt.cache == FUSE_CACHE_ALWAYS)
        out->open_flags = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE;
    return 0;
}

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

/* The entry at offset `off`; NULL at the end, or on an error. */
static const struct linux_dirent64 *entry_at(struct fuse_server *s, struct handle *h, uint64_t off,
                                             int *err)
{
    if (!h->buf && !(h->buf = malloc(DIR_BUF))) {
        *err = -ENOMEM;
        return NULL;
    }
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
    if (h->pos >= h->len) {
        long n = syscall(SYS_getdents64, h->fd, h->buf, (size_t)DIR_BUF);
        if (n <= 0) {
            *err = n < 0 ? -errno : 0;
            return NULL;
        }
        h->pos = 0;
        h->len = (size_t)n;
    }
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

/* The inode number behind the root's ".." is not shown to the guest. */
static uint64_t shown_ino(const struct fuse_server *s, const struct handle *h,
                          const struct linux_dirent64 *d)
{
    if (h->inode->id == FUSE_ROOT_ID && is_dots(d->d_name) && !is_made_up(s, h->inode))
        return h->inode->ino;
    return d->d_ino;
}

static int read_entries(struct fuse_server *s, struct call *c, bool plus)
{
    const struct fuse_read_in *in = c->arg;
    struct handle *h = handle_get(s, in->fh, true);
    size_t head = plus ? sizeof(struct fuse_entry_out) : 0;
    size_t room = MIN((size_t)in->size, (size_t)REP_MAX_BYTES);
    uint64_t off = in->offset;
    int err = 0;
    if (!h)
        return -EBADF;
    room = MIN(room, c->q->in_len - sizeof(struct fuse_out_header));
    const struct linux_dirent64 *d;
    while ((d = entry_at(s, h, off, &err))) {
        size_t len = strlen(d->d_name);
        size_t size = FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + len);
        if (size > room - c->rep_len)
            break;
        uint8_t *at = s->rep + c->rep_len;
        memset(at, 0, size);
        struct fuse_dirent out = {.ino = shown_ino(s, h, d),
                                  .off = (uint64_t)d->d_off,
                                  .namelen = (uint32_t)len,
                                  .type = d->d_type};
        /* A name that went meanwhile has no attributes; the guest looks again if it cares. */
        struct fuse_entry_out e = {0};
        if (plus && !is_dots(d->d_name) && make_entry(s, h->inode, d->d_name, &e) < 0)
            e = (struct fuse_entry_out){0};
        if (plus)
            memcpy(at, &e, sizeof(e));
        memcpy(at + head, &out, FUSE_NAME_OFFSET);
        memcpy(at + head + FUSE_NAME_OFFSET, d->d_name, len);
        c->rep_len += size;
        off = (uint64_t)d->d_off;
        advance(s, h, d);
    }
    if (d && c->rep_len == 0)
        return -EINVAL; /* not even one fits */
    return c->rep_len ? 0 : err;
}

int op_readdir(struct fuse_server *s, struct call *c)
{
    return read_entries(s, c, false);
}

int op_readdirplus(struct fuse_server *s, struct call *c)
{
    return read_entries(s, c, true);
}
