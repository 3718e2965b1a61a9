/* Names and attributes: LOOKUP, FORGET, GETATTR, SETATTR, READLINK, STATFS, ACCESS. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

/* #syscalls:fs newfstatat fstat fcntl readlinkat fstatfs fchmodat utimensat openat ftruncate
 * close clock_gettime */

#define SECOND 1000000000ULL

void path_of(char out[PATH_REF_MAX], int dir_fd, const char *name)
{
    (void)snprintf(out, PATH_REF_MAX, "%d%s%.*s", dir_fd, name ? "/" : "", NAME_MAX,
                   name ? name : "");
}

/* --- attributes ------------------------------------------------------------------------------ */

/* Inode numbers of another file system below the root must not look like the root's. */
uint64_t shown_number(const struct fuse_server *s, dev_t dev, ino_t ino)
{
    const struct inode *root = s->slot[FUSE_ROOT_ID];
    bool other = root && !s->opt.file && dev != root->dev;
    return ino ^ (other ? ((uint64_t)(dev * 2654435761U) & 0xffff) << 48 : 0);
}

void fill_attr(const struct fuse_server *s, const struct stat *st, const struct owner *o,
               struct fuse_attr *a)
{
    *a = (struct fuse_attr){
        .ino = shown_number(s, st->st_dev, st->st_ino),
        .size = (uint64_t)st->st_size,
        .blocks = (uint64_t)st->st_blocks,
        .atime = (uint64_t)st->st_atim.tv_sec,
        .mtime = (uint64_t)st->st_mtim.tv_sec,
        .ctime = (uint64_t)st->st_ctim.tv_sec,
        .atimensec = (uint32_t)st->st_atim.tv_nsec,
        .mtimensec = (uint32_t)st->st_mtim.tv_nsec,
        .ctimensec = (uint32_t)st->st_ctim.tv_nsec,
        .mode = (st->st_mode & S_IFMT) | o->mode,
        .nlink = (uint32_t)st->st_nlink,
        .uid = o->uid,
        .gid = o->gid,
        .blksize = (uint32_t)st->st_blksize,
    };
}

static uint64_t ns_to_valid(uint64_t ns, uint32_t *ret_nsec)
{
    *ret_nsec = (uint32_t)(ns % SECOND);
    return ns / SECOND;
}

/* Every file access walks its path, so directories are cached longer. */
static uint64_t holds_ns(const struct fuse_server *s, const struct stat *st)
{
    return S_ISDIR(st->st_mode) ? s->dir_ns : s->entry_ns;
}

/* ours: the last change was our own. */
static void attr_of(struct fuse_server *s, int fd, const struct stat *st, bool ours,
                    struct fuse_attr_out *out)
{
    struct owner o;
    uint64_t age = 0;
    if (!ours || !owner_before(s, st, &o, &age))
        owner_load(s, fd, NULL, st, &o);
    fill_attr(s, st, &o, &out->attr);
    uint64_t holds = holds_ns(s, st);
    out->attr_valid = ns_to_valid(holds - MIN(age, holds), &out->attr_valid_nsec);
}

static int reply_attr(struct fuse_server *s, struct call *c, int fd, const struct stat *st,
                      bool ours)
{
    attr_of(s, fd, st, ours, call_reply(s, c, sizeof(struct fuse_attr_out)));
    return 0;
}

void put_dir_attr(struct fuse_server *s, struct call *c)
{
    struct fuse_attr_out out = {0};
    struct stat st;
    int fd = inode_dir_fd(s, c->inode);
    if (c->rep_len + sizeof(out) > c->q->in_len - sizeof(struct fuse_out_header) || fd < 0 ||
        stat_fd(s, fd, &st) < 0)
        return;
    attr_of(s, fd, &st, true, &out);
    memcpy(s->rep + c->rep_len, &out, sizeof(out));
    c->rep_len += sizeof(out);
}

/* The directory around a single file, which exists only for the guest. */
static void only_directory(struct fuse_server *s, struct stat *st)
{
    struct stat file;
    *st = (struct stat){.st_ino = FUSE_ROOT_ID,
                        .st_mode = S_IFDIR | 0755,
                        .st_nlink = 2,
                        .st_blksize = 4096,
                        .st_uid = s->host_uid,
                        .st_gid = s->host_gid};
    if (stat_fd(s, s->root_fd, &file) == 0)
        st->st_mtim = st->st_ctim = st->st_atim = file.st_mtim;
}

/* --- entries --------------------------------------------------------------------------------- */

/* In the directory around a single file there is one name; around several trees, theirs. *fd: what
 * it leads to. */
static int find_at_top(struct fuse_server *s, const char *name, int *fd, struct stat *st,
                       struct inode **ret)
{
    const struct tree *t = s->opt.many ? tree_find(s, name) : NULL;
    if (s->opt.many ? !t : strcmp(name, s->file_name) != 0)
        return -ENOENT;
    *fd = t ? t->fd : s->root_fd;
    if (stat_fd(s, *fd, st) < 0)
        return -errno;
    return inode_find_root(s, t ? 1ULL << (t - s->trees) : 0, *fd, st, ret);
}

static void give_entry(struct fuse_server *s, struct inode *i, const struct stat *st,
                       const struct owner *o, struct fuse_entry_out *e)
{
    memset(e, 0, sizeof(*e));
    fill_attr(s, st, o, &e->attr);
    e->nodeid = i->id;
    e->generation = i->generation;
    e->entry_valid = ns_to_valid(holds_ns(s, st), &e->entry_valid_nsec);
    e->attr_valid = ns_to_valid(holds_ns(s, st), &e->attr_valid_nsec);
    i->lookups++;
}

int fill_entry(struct fuse_server *s, struct inode *parent, const char *name, const struct stat *st,
               const struct owner *o, struct fuse_entry_out *e)
{
    struct inode *i = NULL;
    struct owner found;
    int r = inode_find(s, parent, name, st, &i);
    if (r < 0 || !i)
        return r;
    if (!o) {
        owner_load(s, inode_dir_fd(s, parent), name, st, &found);
        o = &found;
    } else {
        owner_note(i, st, o);
    }
    give_entry(s, i, st, o, e);
    return 0;
}

int make_entry(struct fuse_server *s, struct inode *parent, const char *name,
               struct fuse_entry_out *e)
{
    struct stat st;
    struct inode *i = NULL;
    struct owner o;
    if (is_made_up(s, parent)) {
        int top = -1, r = find_at_top(s, name, &top, &st, &i);
        if (r < 0 || !i)
            return r;
        owner_load(s, top, NULL, &st, &o);
        give_entry(s, i, &st, &o, e);
        /* A single file is looked up once, to be mounted. Its content may come later: Podman 5
         * writes a container's resolv.conf between create and start. */
        if (!s->opt.many)
            e->attr_valid = e->attr_valid_nsec = 0;
        return 0;
    }
    int dir = inode_dir_fd(s, parent);
    if (dir < 0)
        return dir;
    if (stat_at(s, dir, name, &st) < 0)
        return -errno;
    return fill_entry(s, parent, name, &st, NULL, e);
}

int op_lookup(struct fuse_server *s, struct call *c)
{
    struct fuse_entry_out *e = call_reply(s, c, sizeof(*e));
    int r = make_entry(s, c->inode, c->name[0], e);
    if (r == 0)
        put_entries_ahead(s, c);
    if (r != -ENOENT || s->opt.cache == FUSE_CACHE_NONE)
        return r;
    /* No such name; the guest may cache that, too. */
    memset(e, 0, sizeof(*e));
    e->entry_valid = ns_to_valid(s->entry_ns, &e->entry_valid_nsec);
    return 0;
}

int op_forget(struct fuse_server *s, struct call *c)
{
    const struct fuse_forget_in *in = c->arg;
    inode_forget(s, c->inode, in->nlookup);
    return 0;
}

int op_batch_forget(struct fuse_server *s, struct call *c)
{
    const struct fuse_batch_forget_in *in = c->arg;
    size_t fit = (c->arg_len - sizeof(*in)) / sizeof(struct fuse_forget_one);
    const uint8_t *p = (const uint8_t *)c->arg + sizeof(*in);
    for (size_t k = 0; k < MIN(fit, (size_t)in->count); k++) {
        struct fuse_forget_one one;
        memcpy(&one, p + k * sizeof(one), sizeof(one));
        struct inode *i = inode_get(s, one.nodeid);
        if (i)
            inode_forget(s, i, one.nlookup);
    }
    return 0;
}

/* --- GETATTR, SETATTR ------------------------------------------------------------------------ */

/* The descriptor behind an open file if the guest names one, else the inode's own. */
static int any_fd(struct fuse_server *s, const struct call *c, bool with_handle, uint64_t fh)
{
    const struct handle *h = with_handle ? handle_get(s, fh, false) : NULL;
    return h && h->inode == c->inode ? h->fd : inode_fd(s, c->inode);
}

int op_getattr(struct fuse_server *s, struct call *c)
{
    const struct fuse_getattr_in *in = c->arg;
    struct stat st;
    if (is_made_up(s, c->inode)) {
        only_directory(s, &st);
        return reply_attr(s, c, -1, &st, false); /* it has no other state */
    }
    int fd = any_fd(s, c, in->getattr_flags & FUSE_GETATTR_FH, in->fh);
    if (fd < 0)
        return fd;
    if (stat_fd(s, fd, &st) < 0)
        return -errno;
    return reply_attr(s, c, fd, &st, false);
}

int kill_set_id(struct fuse_server *s, int fd, const struct stat *st)
{
    struct owner o;
    if (!S_ISREG(st->st_mode))
        return 0;
    owner_load(s, fd, NULL, st, &o);
    uint32_t kill = S_ISUID | (o.mode & S_IXGRP ? S_ISGID : 0);
    if (!(o.mode & kill))
        return 0;
    o.mode &= ~kill;
    return owner_store(s, fd, NULL, st, &o);
}

/* 1: st is out of date; 0: nothing has changed. */
static int set_owner(struct fuse_server *s, int fd, struct stat *st,
                     const struct fuse_setattr_in *in)
{
    struct owner o, was;
    char path[PATH_REF_MAX];
    owner_load(s, fd, NULL, st, &was);
    o = was;
    if (in->valid & FATTR_UID)
        o.uid = in->uid;
    if (in->valid & FATTR_GID)
        o.gid = in->gid;
    if (in->valid & (FATTR_UID | FATTR_GID) && S_ISREG(st->st_mode))
        o.mode &= ~(uint32_t)(S_ISUID | (o.mode & S_IXGRP ? S_ISGID : 0));
    if (in->valid & FATTR_MODE)
        o.mode = in->mode & 07777;
    uint32_t host = owner_host_mode(s, st->st_mode & S_IFMT, o.mode);
    bool change = in->valid & FATTR_MODE && !S_ISLNK(st->st_mode) && (st->st_mode & 07777) != host;
    if (!change && owner_same(&o, &was))
        return 0;
    if (change) {
        /* Another user's file keeps its mode; the guest sees the mode that it set. */
        path_of(path, fd, NULL);
        if (fchmodat(AT_FDCWD, path, host, 0) == 0)
            st->st_mode = (st->st_mode & S_IFMT) | host;
        else if (errno != EPERM)
            return -errno;
    }
    int r = owner_store(s, fd, NULL, st, &o);
    return r < 0 ? r : 1;
}

static int set_size(struct fuse_server *s, const struct call *c, const struct fuse_setattr_in *in)
{
    const struct handle *h = in->valid & FATTR_FH ? handle_get(s, in->fh, false) : NULL;
    AUTO_CLOSE int opened = -1;
    int fd;
    if (in->size > INT64_MAX)
        return -EFBIG;
    if (h && h->inode == c->inode && h->writable) {
        fd = h->fd;
    } else {
        char path[PATH_REF_MAX];
        if (!S_ISREG(c->inode->type))
            return S_ISDIR(c->inode->type) ? -EISDIR : -EINVAL;
        int base = inode_fd(s, c->inode);
        if (base < 0)
            return base;
        path_of(path, base, NULL);
        int r = later_bring(s, c->inode, path, in->size == 0);
        if (r < 0)
            return r;
        fd = opened = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            return -errno;
    }
    uint64_t before = quota_before(s, fd);
    int r = ftruncate(fd, (off_t)in->size) < 0 ? -errno : 0;
    quota_after(s, fd, before);
    return r;
}

static int set_times(int fd, const struct fuse_setattr_in *in)
{
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    if (in->valid & FATTR_ATIME_NOW)
        ts[0].tv_nsec = UTIME_NOW;
    else if (in->valid & FATTR_ATIME)
        ts[0] = (struct timespec){(time_t)in->atime, (long)MIN(in->atimensec, 999999999U)};
    if (in->valid & FATTR_MTIME_NOW)
        ts[1].tv_nsec = UTIME_NOW;
    else if (in->valid & FATTR_MTIME)
        ts[1] = (struct timespec){(time_t)in->mtime, (long)MIN(in->mtimensec, 999999999U)};
    return utimensat(fd, "", ts, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

int op_setattr(struct fuse_server *s, struct call *c)
{
    const struct fuse_setattr_in *in = c->arg;
    struct stat st;
    int r = 0;
    if (is_made_up(s, c->inode))
        return -EROFS;
    if (in->valid & FATTR_SIZE)
        r = set_size(s, c, in);
    int fd = r < 0 ? r : any_fd(s, c, in->valid & FATTR_FH, in->fh);
    if (fd < 0)
        return fd;
    bool stale = true; /* st */
    if (in->valid & (FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE)) {
        if (stat_fd(s, fd, &st) < 0)
            return -errno;
        if (in->valid & (FATTR_MODE | FATTR_UID | FATTR_GID)) {
            r = set_owner(s, fd, &st, in);
            stale = r != 0;
        } else if (in->valid & FATTR_KILL_SUIDGID) {
            r = kill_set_id(s, fd, &st);
        } else {
            stale = false;
        }
    }
    if (r >= 0 && in->valid & (FATTR_ATIME | FATTR_MTIME | FATTR_ATIME_NOW | FATTR_MTIME_NOW)) {
        r = set_times(fd, in);
        stale = true;
    }
    if (r >= 0 && stale && stat_fd(s, fd, &st) < 0)
        r = -errno;
    return r < 0 ? r : reply_attr(s, c, fd, &st, true);
}

/* --- the rest -------------------------------------------------------------------------------- */

int op_readlink(struct fuse_server *s, struct call *c)
{
    if (!S_ISLNK(c->inode->type))
        return -EINVAL;
    int fd = inode_fd(s, c->inode);
    if (fd < 0)
        return fd;
    ssize_t n = readlinkat(fd, "", (char *)s->rep, PATH_MAX);
    if (n < 0)
        return -errno;
    c->rep_len = (size_t)n;
    return 0;
}

int op_statfs(struct fuse_server *s, struct call *c)
{
    struct statfs f;
    struct fuse_statfs_out *out = call_reply(s, c, sizeof(*out));
    int fd = s->opt.many && !is_made_up(s, c->inode) ? inode_fd(s, c->inode) : s->root_fd;
    if (fd < 0 && is_made_up(s, c->inode))
        return 0;
    if (fd < 0)
        return fd;
    if (fstatfs(fd, &f) < 0)
        return -errno;
    /* Other FUSE servers may say 0, and the kernel does for mounts that are not for this user. */
    uint32_t block = (uint32_t)(f.f_frsize ? f.f_frsize : f.f_bsize);
    out->st = (struct fuse_kstatfs){
        .blocks = f.f_blocks,
        .bfree = f.f_bfree,
        .bavail = f.f_bavail,
        .files = f.f_files,
        .ffree = f.f_ffree,
        .bsize = (uint32_t)f.f_bsize,
        .namelen = NAME_MAX,
        .frsize = block ? block : 4096,
    };
    if (s->opt.quota) {
        uint64_t left = s->opt.quota > s->used ? s->opt.quota - s->used : 0;
        uint64_t room = out->st.bavail * out->st.frsize;
        out->st.blocks = s->opt.quota / out->st.frsize;
        out->st.bfree = out->st.bavail = MIN(left, room) / out->st.frsize;
    }
    return 0;
}

/* The guest's kernel has decided already. */
int op_access(struct fuse_server *s, struct call *c)
{
    const struct fuse_access_in *in = c->arg;
    return in->mask & W_OK && s->opt.read_only ? -EROFS : 0;
}

/* Whether the guest's cache still matches the file. Times are as coarse as the host's clock ticks,
 * so a second change to a recently changed file could go unnoticed: such a file is not trusted. */
bool may_keep_cache(struct inode *i, const struct stat *st)
{
    enum { TICKS_NS = 50000000 };
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0)
        return false;
    bool keep = i->seen && i->seen_size == st->st_size &&
                memcmp(&i->seen_mtime, &st->st_mtim, sizeof(st->st_mtim)) == 0 &&
                memcmp(&i->seen_ctime, &st->st_ctim, sizeof(st->st_ctim)) == 0;
    time_t age = now.tv_sec - st->st_ctim.tv_sec;
    i->seen =
        age > 1 || (age >= 0 && age * (long)SECOND + now.tv_nsec - st->st_ctim.tv_nsec > TICKS_NS);
    i->seen_size = st->st_size;
    i->seen_mtime = st->st_mtim;
    i->seen_ctime = st->st_ctim;
    return keep;
}
