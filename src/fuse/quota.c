/* How much of the host's disk a share may use: the blocks of its files, as the host counts them.
 * Files that exist at the start count; later changes by others on the host do not. */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/tree_walk.h"

#include <errno.h>
#include <fcntl.h>

/* #syscalls:fs fstat openat */

enum { BLOCK = 512, TRIES = 16 };

static uint64_t bytes_of(const struct stat *st)
{
    return (uint64_t)st->st_blocks * BLOCK;
}

/* A file with several names counts in parts, one for each name, and for no less than its size in
 * total if all of them are here; a guest cannot create names elsewhere. */
static void add(void *ctx, const struct stat *st)
{
    struct fuse_server *s = ctx;
    nlink_t names = S_ISDIR(st->st_mode) || st->st_nlink == 0 ? 1 : st->st_nlink;
    s->used += (bytes_of(st) + names - 1) / names;
}

int quota_init(struct fuse_server *s)
{
    char path[PATH_REF_MAX];
    int r = s->opt.quota ? -ESTALE : 0;
    for (unsigned i = 0; r == -ESTALE && i < TRIES; i++) {
        path_of(path, s->root_fd, NULL);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        s->used = 0;
        r = fd < 0 ? -errno : tree_walk(fd, add, s);
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
    if (grows == 0 && bytes_of(&st) >= MIN(end, size)) /* overwrites existing data */
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
