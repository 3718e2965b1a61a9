#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "image/layer/source.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum { READ_BUF = 1 << 20 };

/* A directory still to be visited. Paths are opened from the root each time, so a deep tree needs
 * no more descriptors than a flat one. */
struct pending {
    struct pending *next;
    struct tree_inode *dir;
    char path[]; /* relative to the root; "." is the root */
};

/* A file with several names, by its identity on the host. */
struct hardlink {
    dev_t dev;
    ino_t ino;
    struct tree_inode *inode;
};

struct walk_state {
    struct source_dir *s;
    struct tree *t;
    struct pending *head, **tail;
    /* scan */
    dev_t dev;
    void *links; /* tsearch tree of struct hardlink */
    struct hasher hash;
    /* load */
    struct erofs_writer *w;
    uint8_t *buf;
};

static int push(struct walk_state *ws, struct tree_inode *dir, const char *parent, const char *name)
{
    size_t plen = strcmp(parent, ".") == 0 ? 0 : strlen(parent) + 1, nlen = strlen(name);
    struct pending *p = malloc(sizeof(*p) + plen + nlen + 1);
    if (!p)
        return -ENOMEM;
    p->next = NULL;
    p->dir = dir;
    if (plen) {
        memcpy(p->path, parent, plen - 1);
        p->path[plen - 1] = '/';
    }
    memcpy(p->path + plen, name, nlen + 1);
    *ws->tail = p;
    ws->tail = &p->next;
    return 0;
}

static struct pending *pop(struct walk_state *ws)
{
    struct pending *p = ws->head;
    if (p) {
        ws->head = p->next;
        if (!ws->head)
            ws->tail = &ws->head;
    }
    return p;
}

static void walk_fini(struct walk_state *ws)
{
    for (struct pending *p; (p = pop(ws));)
        free(p);
    tdestroy(ws->links, free);
    free(ws->buf);
}

/* For kernels and sandboxes without openat2: one component after another. */
static int open_steps(int rootfd, const char *path)
{
    AUTO_CLOSE int fd = openat(rootfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && *path) {
        char name[TREE_NAME_MAX + 1];
        size_t n = strcspn(path, "/");
        if (n >= sizeof(name))
            return -ENAMETOOLONG;
        memcpy(name, path, n);
        name[n] = '\0';
        int next = dir_open_at(fd, name);
        close_fd(&fd);
        fd = next;
        path += n + (path[n] == '/');
    }
    return fd < 0 ? -errno : steal_fd(&fd);
}

static int open_dir(int rootfd, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV};
    int fd = (int)syscall(SYS_openat2, rootfd, path, &how, sizeof(how));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EAGAIN))
        return open_steps(rootfd, path);
    return fd < 0 ? -errno : fd;
}

static int fail(const struct walk_state *ws, int code, const char *dir, const char *name,
                struct err *e)
{
    bool top = strcmp(dir, ".") == 0;
    int r = err_sys(e, code, "cannot read '%.300s/%.300s%s%s'", ws->s->name, top ? "" : dir,
                    top || !*name ? "" : "/", name);
    if (code == EACCES || code == EPERM)
        err_hint(e,
                 "an image includes every file: make it readable, or use a tar of the directory");
    return r;
}

/* ---- scan ---- */

static int hardlink_cmp(const void *a, const void *b)
{
    const struct hardlink *x = a, *y = b;
    if (x->dev != y->dev)
        return x->dev < y->dev ? -1 : 1;
    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

/* *ret: the note of this file; its inode is NULL if this is the first name. */
static int find_hardlink(struct walk_state *ws, const struct stat *st, struct hardlink **ret)
{
    struct hardlink *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->dev = st->st_dev;
    h->ino = st->st_ino;
    struct hardlink **slot = tsearch(h, &ws->links, hardlink_cmp);
    if (!slot || *slot != h)
        free(h);
    if (!slot)
        return -ENOMEM;
    *ret = *slot;
    return 0;
}

static int64_t ts_ns(const struct timespec *ts)
{
    return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

static void hash_entry(struct walk_state *ws, const char *dir, const char *name,
                       const struct stat *st, const struct tree_attr *a)
{
    uint64_t rec[] = {st->st_dev, st->st_ino, st->st_size, (uint64_t)ts_ns(&st->st_mtim),
                      a->mode,    a->uid,     a->gid,      (uint64_t)ts_ns(&st->st_ctim),
                      a->major,   a->minor,   st->st_nlink};
    hasher_update(&ws->hash, dir, strlen(dir) + 1);
    hasher_update(&ws->hash, name, strlen(name) + 1);
    hasher_update(&ws->hash, rec, sizeof(rec));
    ws->s->newest_ctime_ns = MAX(ws->s->newest_ctime_ns, ts_ns(&st->st_ctim));
}

static struct tree_attr attr_of(const struct stat *st)
{
    uid_t me = geteuid();
    struct tree_attr a = {
        .mode = (uint16_t)st->st_mode,
        .uid = me && st->st_uid == me ? 0 : st->st_uid,
        .gid = me && st->st_gid == getegid() ? 0 : st->st_gid,
        .mtime = st->st_mtim.tv_sec,
        .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
    };
    if (S_ISREG(st->st_mode))
        a.size = (uint64_t)st->st_size;
    if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) {
        a.major = major(st->st_rdev);
        a.minor = minor(st->st_rdev);
    }
    return a;
}

static int scan_entry(struct walk_state *ws, int dirfd, const struct pending *p, const char *name,
                      struct err *e)
{
    struct stat st;
    char target[TREE_PATH_MAX];
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail(ws, errno, p->path, name, e); /* removed meanwhile */
    struct tree_attr a = attr_of(&st);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(dirfd, name, target, sizeof(target) - 1);
        if (n < 0)
            return errno == ENOENT ? 0 : fail(ws, errno, p->path, name, e);
        target[n] = '\0';
        a.target = target;
    }
    hash_entry(ws, p->path, name, &st, &a);

    struct hardlink *h = NULL;
    int r = 0;
    if (!S_ISDIR(st.st_mode) && st.st_nlink > 1 && find_hardlink(ws, &st, &h) < 0)
        return fail(ws, ENOMEM, p->path, name, e);
    struct tree_inode *ino = NULL;
    if (h && h->inode)
        return tree_link_at(ws->t, p->dir, name, h->inode, e);
    r = tree_add_at(ws->t, p->dir, name, &a, &ino, e);
    if (r < 0) {
        (void)err_wrap(e, r, "%.300s/%.300s", ws->s->name, p->path);
        return r;
    }
    if (h)
        h->inode = ino;
    bool skip =
        st.st_dev != ws->dev || (st.st_ino == ws->s->skip_ino && st.st_dev == ws->s->skip_dev);
    if (S_ISDIR(st.st_mode) && !skip && push(ws, ino, p->path, name) < 0)
        return fail(ws, ENOMEM, p->path, name, e);
    return 0;
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Names are sorted: neither key nor image may depend on the file system's order. */
static int scan_dir(struct walk_state *ws, const struct pending *p, struct err *e)
{
    AUTO_CLOSE int fd = open_dir(ws->s->fd, p->path);
    if (fd < 0)
        return fail(ws, -fd, p->path, "", e);
    struct dirent **names = NULL;
    int n = scandirat(fd, ".", &names, not_dots, by_bytes), r = 0;
    if (n < 0)
        return fail(ws, errno, p->path, "", e);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = scan_entry(ws, fd, p, names[i]->d_name, e);
        free(names[i]);
    }
    free(names);
    return r;
}

int source_dir_scan(struct source_dir *s, struct tree *t, struct err *e)
{
    struct walk_state ws = {.s = s, .t = t, .tail = &ws.head};
    struct stat st;
    int r = 0;
    hasher_init(&ws.hash);
    if (push(&ws, t->root, ".", ".") < 0) {
        r = err_oom(e);
    } else if (fstat(s->fd, &st) < 0) {
        r = err_sys(e, errno, "cannot read '%s'", s->name);
    } else {
        ws.dev = st.st_dev;
        s->newest_ctime_ns = 0;
        struct tree_attr a = attr_of(&st);
        hash_entry(&ws, "", ".", &st, &a);
        r = tree_add(t, "/", &a, NULL, e);
    }
    for (struct pending *p; r == 0 && (p = pop(&ws));) {
        r = scan_dir(&ws, p, e);
        free(p);
    }
    s->key = hasher_finish(&ws.hash);
    walk_fini(&ws);
    return r;
}

/* ---- load ---- */

bool source_wants_xattr(const char *name)
{
    static const char *const drop[] = {"trusted.overlay.", "trusted.msb.", "security.selinux",
                                       "security.ima",     "security.evm", "security.apparmor"};
    for (size_t i = 0; i < ARRAY_LEN(drop); i++)
        if (strncmp(name, drop[i], strlen(drop[i])) == 0)
            return false;
    return strncmp(name, "user.", 5) == 0 || strncmp(name, "trusted.", 8) == 0 ||
           strncmp(name, "security.", 9) == 0 || strcmp(name, "system.posix_acl_access") == 0 ||
           strcmp(name, "system.posix_acl_default") == 0;
}

/* Reads the attributes of fd/name without following it: the l*xattr calls take a path, and
 * /proc/self/fd provides one for a descriptor. */
static int load_xattrs(struct walk_state *ws, int dirfd, const char *name, struct tree_inode *ino,
                       struct err *e)
{
    char path[TREE_NAME_MAX + 64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dirfd, name);
    char list[XATTR_LIST_MAX];
    ssize_t n = llistxattr(path, list, sizeof(list));
    if (n < 0)
        return errno == ENOTSUP || errno == ENOENT ? 0 : -errno;
    for (char *x = list; x < list + n; x += strlen(x) + 1) {
        if (!source_wants_xattr(x))
            continue;
        ssize_t len = lgetxattr(path, x, ws->buf, READ_BUF);
        if (len < 0 && (errno == ENODATA || errno == ENOENT))
            continue;
        if (len < 0)
            return -errno;
        int r = tree_set_xattr(ws->t, ino, x, ws->buf, (size_t)len, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Copies one range that holds data; if the file is short, the rest is zeros. */
static int load_range(struct walk_state *ws, int fd, uint64_t at, uint64_t end, struct err *e)
{
    while (at < end) {
        ssize_t n = pread(fd, ws->buf, (size_t)MIN(end - at, (uint64_t)READ_BUF), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        int r = erofs_file_write(ws->w, at, ws->buf, (size_t)n, e);
        if (r < 0)
            return r;
        at += (uint64_t)n;
    }
    return 0;
}

static int load_data(struct walk_state *ws, int fd, struct tree_inode *ino, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return 0; /* replaced since the scan, which the next scan will notice */
    bool sparse = (uint64_t)st.st_blocks * 512 < ino->size;
    int r = erofs_file_begin(ws->w, ino, e);
    for (uint64_t at = 0; r == 0 && at < ino->size;) {
        uint64_t end = ino->size;
        if (sparse) {
            off_t data = lseek(fd, (off_t)at, SEEK_DATA);
            if (data < 0 && errno == ENXIO) /* only a hole is left */
                break;
            off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
            if (data >= 0 && hole > data) {
                at = (uint64_t)data;
                end = MIN((uint64_t)hole, ino->size);
            }
        }
        r = at < end ? load_range(ws, fd, at, end, e) : 0;
        at = end;
    }
    return r < 0 ? r : erofs_file_end(ws->w, e);
}

static int load_entry(struct walk_state *ws, int dirfd, const struct pending *p,
                      struct tree_dirent *d, struct err *e)
{
    struct tree_inode *ino = d->inode;
    if (ino->nid) /* another of its names came before */
        return 0;
    ino->nid = 1;
    struct err inner = {0};
    int r = load_xattrs(ws, dirfd, d->name, ino, &inner);
    if (r == 0 && S_ISDIR(ino->mode)) {
        r = push(ws, ino, p->path, d->name);
    } else if (r == 0 && S_ISREG(ino->mode) && ino->size) {
        AUTO_CLOSE int fd =
            openat(dirfd, d->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        r = fd < 0 ? -errno : load_data(ws, fd, ino, &inner);
    }
    if (r == 0)
        return 0;
    if (!inner.code)
        return fail(ws, -r, p->path, d->name, e);
    err_copy(e, &inner);
    (void)err_wrap(e, r, "'%.300s/%.300s/%.256s'", ws->s->name, p->path, d->name);
    return r;
}

int source_dir_load(struct source_dir *s, struct tree *t, struct erofs_writer *w, struct err *e)
{
    struct walk_state ws = {.s = s, .t = t, .tail = &ws.head, .w = w, .buf = malloc(READ_BUF)};
    int r = 0;
    if (!ws.buf || push(&ws, t->root, ".", ".") < 0)
        r = err_oom(e);
    if (r == 0 && (r = load_xattrs(&ws, s->fd, ".", t->root, e)) < 0 && e && !e->code)
        r = fail(&ws, -r, ".", "", e);
    for (struct pending *p; r == 0 && (p = pop(&ws));) {
        struct tree_iter it;
        tree_iter_init(&it, p->dir);
        struct tree_dirent *d = tree_iter_next(&it);
        AUTO_CLOSE int fd = d ? open_dir(s->fd, p->path) : -1;
        if (d && fd < 0)
            r = fail(&ws, -fd, p->path, "", e);
        for (; r == 0 && d; d = tree_iter_next(&it))
            r = load_entry(&ws, fd, p, d, e);
        free(p);
    }
    walk_fini(&ws);
    return r;
}
