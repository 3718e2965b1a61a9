#include "util/tree_walk.h"
#include "util/array.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* #syscalls:fs fstat newfstatat openat close getdents64 lseek */

/* The parent of the directory being read, and how far it was read itself. */
struct level {
    dev_t dev;
    ino_t ino;
    long at;
};

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
    DIR *d = dir_take(fd);
    if (!d)
        return -errno;
    if (w->dir)
        (void)closedir(w->dir);
    w->dir = d;
    return 0;
}

static int go_down(struct walk *w, const char *name)
{
    struct stat st;
    if (w->depth == TREE_WALK_DEPTH_MAX)
        return -ELOOP;
    if (ARRAY_GROW(w->above, w->depth, w->room, 64) < 0)
        return -ENOMEM;
    if (fstat(dirfd(w->dir), &st) < 0)
        return -errno;
    int fd = dir_open_at(dirfd(w->dir), name);
    if (fd < 0)
        return fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM ? fd : 0;
    w->above[w->depth++] = (struct level){st.st_dev, st.st_ino, telldir(w->dir)};
    return read_instead(w, fd);
}

/* If the directory has been moved, its parent is no longer the one we came from. */
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

int tree_walk(int dir_fd, void (*fn)(void *ctx, const struct stat *st), void *ctx)
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
        fn(ctx, &st);
        if (S_ISDIR(st.st_mode))
            r = go_down(&w, e->d_name);
    }
    return r;
}
