#include "agent/fileop.h"
#include "agent/layer.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/tar.h"
#include "util/words.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
    XATTR_LIST = 64 << 10, /* the kernel's limits */
    XATTR_VALUE = 64 << 10,
    HEAD_MAX = 1 << 20, /* of an entry: two paths and its attributes */
    LINK_BUCKETS = 4096,
    MARK_LEN = 4,
    LINKS_MAX = 1 << 20,
    PATH_SIZE = PROTO_DEPTH_MAX * (PROTO_NAME_MAX + 1) + 64,
};

/* From kernel headers that musl does not include. */
#define FS_FREEZE _IOWR('X', 119, int)
#define FS_THAW _IOWR('X', 120, int)
#define TREE_CLONE 1

#define MARK ".wh."
#define MARK_OPAQUE ".wh..wh..opq"

/* --- PID 1's part --- */

static int upper_top = -1;
static _Atomic pid_t *frozen_by; /* shared with the children; 0: not frozen */

void layer_init(int fd)
{
    upper_top = fd;
    void *p =
        mmap(NULL, sizeof(*frozen_by), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    frozen_by = p == MAP_FAILED ? NULL : p;
}

int layer_fd(void)
{
    return upper_top;
}

void layer_moved(int fd)
{
    upper_top = fd;
}

static void thaw(pid_t pid)
{
    if (frozen_by && atomic_load(frozen_by) == pid) {
        (void)ioctl(upper_top, FS_THAW, 0);
        atomic_store(frozen_by, 0);
    }
}

void layer_child_gone(pid_t pid)
{
    thaw(pid);
}

/* A layer in memory cannot be frozen, and is read unfrozen. */
static int freeze(struct err *e)
{
    pid_t none = 0;
    if (!frozen_by)
        return 0;
    if (!atomic_compare_exchange_strong(frozen_by, &none, getpid()))
        return err_set(e, EBUSY, "its layer is already being read");
    if (ioctl(upper_top, FS_FREEZE, 0) < 0)
        atomic_store(frozen_by, 0);
    return 0;
}

/* --- output --- */

/* The first name of a file that has several. */
struct first_name {
    struct first_name *next;
    dev_t dev;
    ino_t ino;
    char path[];
};

struct packing {
    struct fchan *c;
    struct err *e;
    struct buf head, xattrs;
    int merged_root; /* the root without what is mounted on it; -1 until needed */
    bool merged;     /* in a directory that is read from there */
    int depth;
    size_t len, base; /* of path, and where its last name begins */
    char path[PATH_SIZE];
    size_t nlinks;
    struct first_name *links[LINK_BUCKETS];
};

static int failed(struct packing *p, int code)
{
    return err_sys(p->e, code, "/%.256s", p->path);
}

static int put_bytes(struct packing *p, const uint8_t *at, size_t n)
{
    int r = 0;
    for (size_t k; r == 0 && n; at += k, n -= k) {
        k = MIN(n, (size_t)PROTO_DATA_MAX);
        if (proto_put(&p->c->tx, PROTO_FILE_DATA, at, k) < 0)
            return err_oom(p->e);
        r = fchan_relieve(p->c);
    }
    return r;
}

static int put_zeros(struct packing *p, uint64_t n)
{
    static const uint8_t zeros[64 << 10];
    int r = 0;
    for (; r == 0 && n; n -= MIN(n, (uint64_t)sizeof(zeros)))
        r = put_bytes(p, zeros, (size_t)MIN(n, (uint64_t)sizeof(zeros)));
    return r;
}

static int put_header(struct packing *p, const struct tar_entry *t)
{
    buf_reset(&p->head);
    int r = tar_format(&p->head, t);
    return r < 0 ? failed(p, -r) : put_bytes(p, buf_head(&p->head), buf_len(&p->head));
}

/* An empty file whose name is its meaning. */
static int put_mark(struct packing *p)
{
    return put_header(p, &(struct tar_entry){.path = p->path, .type = '0'});
}

static struct tar_entry entry_of(const struct packing *p, const struct stat *st, char type)
{
    return (struct tar_entry){.path = p->path,
                              .type = type,
                              .mode = (uint16_t)(st->st_mode & 07777),
                              .uid = st->st_uid,
                              .gid = st->st_gid,
                              .mtime = st->st_mtim.tv_sec,
                              .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
                              .xattrs = &p->xattrs};
}

/* --- attributes --- */

struct dir_marks {
    bool opaque, moved;
};

static int take_xattr(struct packing *p, const char *at, const char *name, struct dir_marks *marks)
{
    static uint8_t value[XATTR_VALUE];
    ssize_t n = lgetxattr(at, name, value, sizeof(value));
    if (n < 0)
        return errno == ENODATA ? 0 : failed(p, errno);
    if (strncmp(name, "trusted.overlay.", 16) == 0) {
        marks->opaque =
            marks->opaque || (strcmp(name + 16, "opaque") == 0 && n == 1 && *value == 'y');
        marks->moved = marks->moved || strcmp(name + 16, "redirect") == 0;
        return 0;
    }
    int r = tar_add_xattr(&p->xattrs, name, value, (size_t)n);
    if (r == -EINVAL)
        return err_set(p->e, EINVAL, "/%.256s: no archive can hold its attribute %.64s", p->path,
                       name);
    return r < 0 ? failed(p, -r) : 0;
}

/* Takes the attributes of dirfd/name, without following links. */
static int take_xattrs(struct packing *p, int dirfd, const char *name, struct dir_marks *marks)
{
    static char list[XATTR_LIST];
    char at[PROTO_NAME_MAX + 64];
    (void)snprintf(at, sizeof(at), "/proc/self/fd/%d/%s", dirfd, name);
    buf_reset(&p->xattrs);
    ssize_t n = llistxattr(at, list, sizeof(list));
    if (n < 0)
        return errno == ENOTSUP ? 0 : failed(p, errno);
    int r = 0;
    for (const char *x = list; r == 0 && x < list + n; x += strlen(x) + 1)
        r = take_xattr(p, at, x, marks);
    return r;
}

/* --- files --- */

/* The first name of the file, or NULL if this is it. */
static int find_link(struct packing *p, const struct stat *st, const char **ret)
{
    struct first_name **at = &p->links[st->st_ino % LINK_BUCKETS];
    *ret = NULL;
    for (const struct first_name *l = *at; l; l = l->next)
        if (l->ino == st->st_ino && l->dev == st->st_dev) {
            *ret = l->path;
            return 0;
        }
    if (p->nlinks++ == LINKS_MAX)
        return err_set(p->e, E2BIG, "more than %d files have hard links", LINKS_MAX);
    struct first_name *l = malloc(sizeof(*l) + p->len + 1);
    if (!l)
        return err_oom(p->e);
    *l = (struct first_name){.next = *at, .dev = st->st_dev, .ino = st->st_ino};
    memcpy(l->path, p->path, p->len + 1);
    *at = l;
    return 0;
}

/* Sends as much as announced, whatever happens to the file. */
static int pack_data(struct packing *p, int fd, uint64_t size)
{
    uint64_t left = size;
    while (left) {
        ssize_t n = fchan_send_from(p->c, fd, left);
        if (n == -ECONNRESET)
            return -ECONNRESET;
        if (n < 0)
            return failed(p, (int)-n);
        if (n == 0)
            break;
        left -= (uint64_t)n;
    }
    return put_zeros(p, left + (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

static int pack_file(struct packing *p, int dirfd, const char *name)
{
    struct stat st;
    const char *first = NULL;
    AUTO_CLOSE int fd = open_regular(dirfd, name, O_NOFOLLOW, &st);
    if (fd < 0)
        return failed(p, -fd);
    if (st.st_nlink > 1) {
        int r = find_link(p, &st, &first);
        if (r < 0)
            return r;
    }
    struct tar_entry t = entry_of(p, &st, first ? '1' : '0');
    if (first) {
        t.link = first;
        t.xattrs = NULL;
        return put_header(p, &t);
    }
    t.size = (uint64_t)st.st_size;
    int r = put_header(p, &t);
    return r < 0 ? r : pack_data(p, fd, t.size);
}

static int pack_link(struct packing *p, int dirfd, const char *name, const struct stat *st)
{
    static char target[PATH_MAX];
    ssize_t n = readlinkat(dirfd, name, target, sizeof(target) - 1);
    if (n < 0)
        return failed(p, errno);
    target[n] = '\0';
    struct tar_entry t = entry_of(p, st, '2');
    t.link = target;
    return put_header(p, &t);
}

/* Devices and FIFOs. Sockets are useless without their processes. */
static int pack_node(struct packing *p, const struct stat *st)
{
    if (S_ISSOCK(st->st_mode))
        return 0;
    char type = S_ISCHR(st->st_mode) ? '3' : S_ISBLK(st->st_mode) ? '4' : '6';
    struct tar_entry t = entry_of(p, st, type);
    if (type != '6') {
        t.major = (uint32_t)major(st->st_rdev);
        t.minor = (uint32_t)minor(st->st_rdev);
    }
    return put_header(p, &t);
}

static int pack_whiteout(struct packing *p)
{
    char *name = p->path + p->base;
    memmove(name + MARK_LEN, name, p->len - p->base + 1);
    memcpy(name, MARK, MARK_LEN);
    return put_mark(p);
}

/* --- directories --- */

static int pack_entry(struct packing *p, int dirfd, const char *name);

/* Takes fd. */
static int pack_children(struct packing *p, int fd)
{
    size_t len = p->len, base = p->base;
    AUTO_CLOSEDIR DIR *d = dir_take(fd);
    if (!d)
        return failed(p, errno);
    if (++p->depth > PROTO_DEPTH_MAX)
        return failed(p, ELOOP);
    const char *name;
    while ((name = fileop_next_name(d))) {
        p->base = len;
        p->len = len + strlen(name);
        memcpy(p->path + len, name, p->len - len + 1);
        int r = pack_entry(p, dirfd(d), name);
        if (r < 0)
            return r;
    }
    if (errno)
        return failed(p, errno);
    p->depth--;
    p->len = len;
    p->base = base;
    p->path[len] = '\0';
    return 0;
}

/* What a moved directory contains, as everyone sees it. */
static int pack_moved(struct packing *p)
{
    if (p->merged_root < 0)
        p->merged_root = (int)syscall(SYS_open_tree, AT_FDCWD, "/", TREE_CLONE | O_CLOEXEC);
    if (p->merged_root < 0)
        return failed(p, errno);
    int fd = openat(p->merged_root, p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return failed(p, errno);
    p->merged = true;
    int r = pack_children(p, fd);
    p->merged = false;
    return r;
}

static int pack_dir(struct packing *p, int dirfd, const char *name, const struct dir_marks *marks)
{
    struct stat st;
    AUTO_CLOSE int fd = dir_open_at(dirfd, name);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failed(p, fd < 0 ? -fd : errno);
    memcpy(p->path + p->len++, "/", 2);
    const struct tar_entry t = entry_of(p, &st, '5');
    int r = put_header(p, &t);
    if (r == 0 && (marks->opaque || marks->moved)) {
        memcpy(p->path + p->len, MARK_OPAQUE, sizeof(MARK_OPAQUE));
        r = put_mark(p);
        p->path[p->len] = '\0';
    }
    if (r < 0)
        return r;
    return marks->moved && !p->merged ? pack_moved(p) : pack_children(p, steal_fd(&fd));
}

/* What msb itself puts into a running sandbox. */
static bool is_ours(const char *path)
{
    return word_among(".msb|etc/hosts|etc/hostname|etc/resolv.conf|etc/.resolv.conf.msb", path);
}

static int pack_entry(struct packing *p, int dirfd, const char *name)
{
    struct stat st;
    struct dir_marks marks = {0};
    if (is_ours(p->path))
        return 0;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : failed(p, errno);
    if (S_ISCHR(st.st_mode) && st.st_rdev == 0)
        return p->merged ? 0 : pack_whiteout(p);
    if (strncmp(name, MARK, MARK_LEN) == 0)
        return err_set(p->e, EINVAL, "/%.256s: in an image a name with " MARK " deletes a file",
                       p->path);
    int r = take_xattrs(p, dirfd, name, &marks);
    if (r < 0)
        return r;
    if (S_ISDIR(st.st_mode))
        return pack_dir(p, dirfd, name, &marks);
    if (S_ISREG(st.st_mode))
        return pack_file(p, dirfd, name);
    return S_ISLNK(st.st_mode) ? pack_link(p, dirfd, name, &st) : pack_node(p, &st);
}

/* --- the operation --- */

static void packing_free(struct packing *p)
{
    for (size_t i = 0; i < LINK_BUCKETS; i++)
        for (struct first_name *l = p->links[i], *next; l; l = next) {
            next = l->next;
            free(l);
        }
    buf_free(&p->head);
    buf_free(&p->xattrs);
    close_fd(&p->merged_root);
}

int fileop_layer(struct fchan *c, const struct file_req *q, struct err *e)
{
    static struct packing p;
    if (upper_top < 0)
        return err_set(e, ENODEV, "there is no layer");
    int fd = dir_open_at(upper_top, "upper");
    if (fd < 0)
        return err_sys(e, -fd, "cannot open the layer");
    int r = freeze(e);
    if (r < 0) {
        close_fd(&fd);
        return r;
    }
    p = (struct packing){.c = c, .e = e, .merged_root = -1};
    buf_init(&p.head, HEAD_MAX);
    buf_init(&p.xattrs, HEAD_MAX / 2);
    r = pack_children(&p, fd);
    if (r == 0)
        r = put_zeros(&p, (uint64_t)2 * TAR_BLOCK);
    packing_free(&p);
    thaw(getpid());
    if (r == 0)
        fchan_put_attr(c, PROTO_FILE_OK, NULL);
    return r;
}
