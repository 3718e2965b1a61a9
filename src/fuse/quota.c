/* How much of the host's disk a share may use: the blocks of its files, as the host counts them.
 * What is there at the start counts; later changes by others on the host do not. */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* #syscalls:fs fstat newfstatat openat close getdents64 lseek */

enum { BLOCK = 512, DEPTH_MAX = 1 << 20, TRIES = 16 };

static uint64_t bytes_of(const struct stat *st)
{
    return (uint64_t)st->st_blocks * BLOCK;
}

static bool first_name(const struct stat *st)
{
    return S_ISDIR(st->st_mode) || st->st_nlink <= 1;
}

/* The directory above one that is being read, and how far it was read itself. */
struct level {
    dev_t dev;
    ino_t ino;
    long at;
};

/* A walk with one descriptor, whatever the depth: a guest made the tree, and what the walk does not
 * reach is free. */
struct walk {
    DIR *dir;
    struct level *above;
    size_t depth, room;
};

static void walk_fini(struct walk *w)
{
    if (w->dir)
        (void)closedir(w->dir);
    free(w->above);
}

/* Owns fd. */
static int read_instead(struct walk *w, int fd)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        int r = -errno;
        (void)close(fd);
        return r;
    }
    if (w->dir)
        (void)closedir(w->dir);
    w->dir = d;
    return 0;
}

static int go_down(struct walk *w, const char *name)
{
    struct stat st;
    if (w->depth == DEPTH_MAX)
        return -ELOOP;
    if (w->depth == w->room) {
        size_t room = w->room ? 2 * w->room : 64;
        struct level *more = reallocarray(w->above, room, sizeof(*more));
        if (!more)
            return -ENOMEM;
        w->above = more;
        w->room = room;
    }
    if (fstat(dirfd(w->dir), &st) < 0)
        return -errno;
    int fd = dir_open_at(dirfd(w->dir), name);
    if (fd < 0) /* unreadable directories do not count */
        return fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM ? fd : 0;
    w->above[w->depth++] = (struct level){st.st_dev, st.st_ino, telldir(w->dir)};
    return read_instead(w, fd);
}

/* If the host moves the directory meanwhile, what is above it is not what was. */
static int go_up(struct walk *w)
{
    struct stat st;
    const struct level *l = &w->above[--w->depth];
    int fd = dir_open_at(dirfd(w->dir), "..");
    if (fd < 0)
        return fd;
    int r = read_instead(w, fd);
    if (r < 0)
        return r;
    if (fstat(dirfd(w->dir), &st) < 0 || st.st_dev != l->dev || st.st_ino != l->ino)
        return -ESTALE;
    seekdir(w->dir, l->at);
    return 0;
}

/* Hard links count in full under each name at first: too much rather than too little. */
static int add_up(struct fuse_server *s, int dir_fd)
{
    CLEANUP(walk_fini) struct walk w = {0};
    int r = read_instead(&w, dir_fd);
    while (r == 0 && w.dir) {
        struct stat st;
        const struct dirent *e = readdir(w.dir);
        if (!e && w.depth == 0)
            return 0;
        if (!e) {
            r = go_up(&w);
            continue;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(dirfd(w.dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        s->used += first_name(&st) ? bytes_of(&st) : bytes_of(&st) / st.st_nlink;
        if (S_ISDIR(st.st_mode))
            r = go_down(&w, e->d_name);
    }
    return r;
}

int quota_init(struct fuse_server *s)
{
    char path[PATH_REF_MAX];
    int r = s->opt.quota ? -ESTALE : 0;
    for (unsigned i = 0; r == -ESTALE && i < TRIES; i++) {
        path_of(path, s->root_fd, NULL);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        s->used = 0;
        r = fd < 0 ? -errno : add_up(s, fd);
    }
    return r;
}

int quota_check(const struct fuse_server *s, uint64_t more)
{
    if (!s->opt.quota)
        return 0;
    return s->used >= s->opt.quota || more > s->opt.quota - s->used ? -EDQUOT : 0;
}

int quota_check_write(const struct fuse_server *s, int fd, uint64_t off, uint64_t len)
{
    struct stat st;
    if (!s->opt.quota || len == 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    uint64_t end = off + len, size = (uint64_t)st.st_size;
    uint64_t grows = end > size ? MIN(end - size, len) : 0;
    if (grows == 0 && bytes_of(&st) >= MIN(end, size)) /* over what is there */
        return 0;
    return quota_check(s, grows ? grows : 1);
}

uint64_t quota_before(const struct fuse_server *s, int fd)
{
    struct stat st;
    return s->opt.quota && fstat(fd, &st) == 0 ? bytes_of(&st) : 0;
}

static void give_back(struct fuse_server *s, uint64_t n)
{
    s->used -= MIN(n, s->used);
}

void quota_after(struct fuse_server *s, int fd, uint64_t before)
{
    struct stat st;
    if (!s->opt.quota || fstat(fd, &st) < 0)
        return;
    uint64_t now = bytes_of(&st);
    if (now >= before)
        s->used += now - before;
    else
        give_back(s, before - now);
}

void quota_gone(struct fuse_server *s, const struct stat *st)
{
    give_back(s, bytes_of(st));
}
