/* How much of the host's disk a share may use: the blocks of its files, as the host counts them.
 * What is there at the start counts; later changes by others on the host do not. */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* #syscalls:fs fstat newfstatat */

enum { BLOCK = 512, DEPTH_MAX = 512 };

static uint64_t bytes_of(const struct stat *st)
{
    return (uint64_t)st->st_blocks * BLOCK;
}

static bool first_name(const struct stat *st)
{
    return S_ISDIR(st->st_mode) || st->st_nlink <= 1;
}

/* Hard links count in full under each name at first: too much rather than too little. */
static int add_up(struct fuse_server *s, int dir_fd, unsigned depth)
{
    AUTO_CLOSEDIR DIR *d = fdopendir(dir_fd);
    if (!d) {
        int r = -errno;
        (void)close(dir_fd);
        return r;
    }
    struct dirent *e;
    while ((e = readdir(d))) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        s->used += first_name(&st) ? bytes_of(&st) : bytes_of(&st) / st.st_nlink;
        if (!S_ISDIR(st.st_mode))
            continue;
        int fd = depth ? dir_open_at(dirfd(d), e->d_name) : -1;
        int r = fd < 0 ? 0 : add_up(s, fd, depth - 1); /* unreadable directories do not count */
        if (r < 0)
            return r;
    }
    return 0;
}

int quota_init(struct fuse_server *s)
{
    char path[PATH_REF_MAX];
    if (!s->opt.quota)
        return 0;
    path_of(path, s->root_fd, NULL);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : add_up(s, fd, DEPTH_MAX);
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
