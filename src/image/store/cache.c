#include "image/store/cache.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "image/erofs/format.h"
#include "image/oci/digest.h"
#include "image/store/lock.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

int cache_subdir(int dirfd, const char *name)
{
    int fd = dir_open_at(dirfd, name);
    if (fd == -ENOENT) {
        if (mkdirat(dirfd, name, 0700) < 0 && errno != EEXIST)
            return -errno;
        fd = dir_open_at(dirfd, name);
    }
    return fd;
}

int cache_top(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        int r = mkdir_parents(path, 0700);
        if (r < 0)
            return r;
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return fd < 0 ? -errno : fd;
}

int cache_open(struct cache *c, int top)
{
    *c = (struct cache)CACHE_INIT;
    int r = c->images_fd = cache_subdir(top, "images");
    if (r >= 0)
        r = c->index_fd = cache_subdir(top, "index");
    if (r >= 0)
        r = c->tmp_fd = cache_subdir(top, "tmp");
    if (r < 0)
        cache_close(c);
    return r < 0 ? r : 0;
}

void cache_close(struct cache *c)
{
    close_fd(&c->images_fd);
    close_fd(&c->index_fd);
    close_fd(&c->tmp_fd);
}

void cache_image_name(const char *hex, char name[CACHE_NAME_SIZE])
{
    (void)snprintf(name, CACHE_NAME_SIZE, "%.64s.%d.erofs", hex, CACHE_VERSION);
}

int cache_check_image(int fd, uint64_t more, uint64_t *ret_size)
{
    struct erofs_super sb;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || pread_all(fd, &sb, sizeof(sb), EROFS_SUPER_OFFSET) < 0 ||
        sb.magic != EROFS_MAGIC || sb.block_bits != EROFS_BLOCK_BITS ||
        (uint64_t)st.st_size + more != (uint64_t)sb.blocks << EROFS_BLOCK_BITS)
        return -EBADMSG;
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

int cache_open_image(const struct cache *c, const char *hex)
{
    char name[CACHE_NAME_SIZE];
    uint64_t size;
    cache_image_name(hex, name);
    AUTO_CLOSE int fd = openat(c->images_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* Images appear by rename, complete; an incomplete one was truncated by something else, and is
     * made again. */
    if (cache_check_image(fd, 0, &size) < 0)
        return -ENOENT;
    return steal_fd(&fd);
}

/* ---- the index ---- */

void cache_identity(const struct stat *st, char hex[CACHE_HEX_SIZE])
{
    uint64_t rec[] = {CACHE_VERSION,
                      st->st_dev,
                      st->st_ino,
                      (uint64_t)st->st_size,
                      (uint64_t)st->st_mtim.tv_sec,
                      (uint64_t)st->st_mtim.tv_nsec,
                      (uint64_t)st->st_ctim.tv_sec,
                      (uint64_t)st->st_ctim.tv_nsec};
    struct digest key = digest_of(rec, sizeof(rec));
    digest_hex(&key, hex);
}

int cache_get_digest(const struct cache *c, const struct stat *st, char hex[CACHE_HEX_SIZE])
{
    char name[CACHE_HEX_SIZE], text[CACHE_HEX_SIZE];
    cache_identity(st, name);
    AUTO_CLOSE int fd = openat(c->index_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (pread_all(fd, text, CACHE_HEX_SIZE - 1, 0) < 0)
        return -ENOENT;
    text[CACHE_HEX_SIZE - 1] = '\0';
    if (strspn(text, "0123456789abcdef") != CACHE_HEX_SIZE - 1)
        return -ENOENT;
    memcpy(hex, text, CACHE_HEX_SIZE);
    return 0;
}

int cache_put_digest(const struct cache *c, const struct stat *st, const char *hex)
{
    char name[CACHE_HEX_SIZE], temp[CACHE_NAME_SIZE];
    cache_identity(st, name);
    (void)snprintf(temp, sizeof(temp), ".%.32s.%d", name, (int)getpid());
    AUTO_CLOSE int fd =
        openat(c->index_fd, temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : pwrite_all(fd, hex, CACHE_HEX_SIZE - 1, 0);
    if (r == 0 && fdatasync(fd) < 0)
        r = -errno;
    if (r == 0 && renameat(c->index_fd, temp, c->index_fd, name) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(c->index_fd, temp, 0);
    return r;
}

void cache_settle(int64_t newest_ctime_ns)
{
    int64_t age = (int64_t)realtime_ns() - newest_ctime_ns;
    if (age >= CACHE_SETTLE_NS)
        return;
    /* A time stamp in the future comes from another clock: waiting for it proves nothing. */
    struct timespec t = {.tv_nsec = age > 0 ? CACHE_SETTLE_NS - age : CACHE_SETTLE_NS};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        continue;
}

/* ---- building ---- */

static void lock_name(const char *key, char name[CACHE_NAME_SIZE])
{
    (void)snprintf(name, CACHE_NAME_SIZE, "%.64s.lock", key);
}

static void temp_name(const char *key, char name[CACHE_NAME_SIZE])
{
    (void)snprintf(name, CACHE_NAME_SIZE, "%.64s.img", key);
}

/* Removes the files of builders that died. */
static void clear_stale(int tmp_fd)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(tmp_fd, ".");
    for (const struct dirent *ent; d && (ent = readdir(d));) {
        char key[CACHE_HEX_SIZE], lock[CACHE_NAME_SIZE], temp[CACHE_NAME_SIZE];
        const char *end = ent->d_name + CACHE_HEX_SIZE - 1;
        if (strlen(ent->d_name) < CACHE_HEX_SIZE ||
            (strcmp(end, ".lock") != 0 && strcmp(end, ".img") != 0))
            continue;
        (void)snprintf(key, sizeof(key), "%.64s", ent->d_name);
        lock_name(key, lock);
        temp_name(key, temp);
        int lock_fd = lock_take(tmp_fd, lock, false);
        if (lock_fd < 0)
            continue;
        (void)unlinkat(tmp_fd, temp, 0);
        lock_drop(tmp_fd, lock, lock_fd);
    }
}

int cache_build_lock(struct cache_build *b, const struct cache *c, const char *key, struct err *e)
{
    *b = (struct cache_build)CACHE_BUILD_NONE;
    b->c = c;
    (void)snprintf(b->key, sizeof(b->key), "%.64s", key);
    char name[CACHE_NAME_SIZE];
    lock_name(key, name);
    int fd = lock_take(c->tmp_fd, name, true);
    if (fd < 0)
        return err_sys(e, -fd, "cannot lock the image cache");
    b->lock_fd = fd;
    return 0;
}

int cache_build_begin(struct cache_build *b, struct err *e)
{
    char name[CACHE_NAME_SIZE];
    assert(b->lock_fd >= 0);
    temp_name(b->key, name);
    clear_stale(b->c->tmp_fd);
    close_fd(&b->fd);
    (void)unlinkat(b->c->tmp_fd, name, 0);
    b->fd = openat(b->c->tmp_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return b->fd < 0 ? err_sys(e, errno, "cannot create a file in the image cache") : 0;
}

int cache_build_publish(struct cache_build *b, const char *hex, struct err *e)
{
    char name[CACHE_NAME_SIZE];
    cache_image_name(hex, name);
    return cache_build_publish_as(b, b->c->images_fd, name, e);
}

int cache_build_publish_as(struct cache_build *b, int dirfd, const char *name, struct err *e)
{
    char temp[CACHE_NAME_SIZE];
    assert(b->lock_fd >= 0 && b->fd >= 0);
    temp_name(b->key, temp);
    if (fchmod(b->fd, 0400) < 0 || fsync(b->fd) < 0 ||
        renameat(b->c->tmp_fd, temp, dirfd, name) < 0 || fsync(dirfd) < 0)
        return err_sys(e, errno, "cannot add the image to the cache");
    close_fd(&b->fd);
    return 0;
}

void cache_build_end(struct cache_build *b)
{
    char name[CACHE_NAME_SIZE];
    if (b->fd >= 0) {
        temp_name(b->key, name);
        (void)unlinkat(b->c->tmp_fd, name, 0);
        close_fd(&b->fd);
    }
    if (b->lock_fd >= 0) {
        lock_name(b->key, name);
        lock_drop(b->c->tmp_fd, name, steal_fd(&b->lock_fd));
    }
}
