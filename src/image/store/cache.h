/* The image cache: EROFS files by the content they were made from.
 *
 *     images/<digest>.<version>.erofs   complete images; never change
 *     index/<identity>                  the digest of a file on the host, so that it is hashed once
 *     tmp/<key>.lock, tmp/<key>.img     an image being built; locked while its builder is alive
 *     upper/                            templates of writable layers (upper.h)
 *
 * Invariants: 1. A name in images/ or index/ appears by rename, after its content is on disk. 2.
 * The builder of `key` holds its lock, and checks for the result again once it has the lock. 3. An
 * .img whose lock can be taken was left behind by a dead builder; the next one removes it.
 */
#pragma once

#include <dirent.h>
#include <stdint.h>
#include <sys/stat.h>

#include "util/cleanup.h"
#include "util/err.h"

/* Part of every key: change it when the same source should yield a different image. */
enum { CACHE_VERSION = 1 };

enum { CACHE_KEY_SIZE = 32, CACHE_HEX_SIZE = 2 * CACHE_KEY_SIZE + 1, CACHE_NAME_SIZE = 96 };

struct cache {
    int images_fd, index_fd, tmp_fd;
};

#define CACHE_INIT                                    \
    {                                                 \
        .images_fd = -1, .index_fd = -1, .tmp_fd = -1 \
    }

/* Creates what is missing. 0 or -errno. */
int cache_open(struct cache *c, int top);
void cache_close(struct cache *c);

/* A descriptor of the cache's own directory, or of one below it, which is created if missing.
 * -errno. */
int cache_top(const char *path);
int cache_subdir(int top, const char *name);

/* The file name of an image, below "images/". */
void cache_image_name(const char *hex, char name[CACHE_NAME_SIZE]);

/* Opens an image read-only: a descriptor, or -ENOENT if it is missing or damaged. */
int cache_open_image(const struct cache *c, const char *hex);
/* Checks any EROFS file, or one that needs `more` bytes after it to be complete (disk.h); *ret_size
 * is its length. */
int cache_check_image(int fd, uint64_t more, uint64_t *ret_size);

/* A host file's digest, if it is still the file that was hashed: same device, inode, size and
 * times. */
int cache_get_digest(const struct cache *c, const struct stat *st, char hex[CACHE_HEX_SIZE]);
int cache_put_digest(const struct cache *c, const struct stat *st, const char *hex);
void cache_identity(const struct stat *st, char hex[CACHE_HEX_SIZE]);

/* A file's times must be older than this before its content is read: a later change could
 * otherwise carry the same time stamp and go unseen. */
#define CACHE_SETTLE_NS 20000000
void cache_settle(int64_t newest_ctime_ns);

/* One image being built. */
struct cache_build {
    const struct cache *c;
    char key[CACHE_HEX_SIZE];
    int lock_fd;
    int fd; /* the image; -1 until cache_build_begin */
};
/* Waits for the key's lock. */
int cache_build_lock(struct cache_build *b, const struct cache *c, const char *key, struct err *e);
/* Creates an empty image file (a new one if called again), after removing what dead builders
 * left. */
int cache_build_begin(struct cache_build *b, struct err *e);
/* Publishes the image as images/<hex>, or under any name on the same file system. */
int cache_build_publish(struct cache_build *b, const char *hex, struct err *e);
int cache_build_publish_as(struct cache_build *b, int dirfd, const char *name, struct err *e);
/* Releases the lock, and removes the file if it was not published. */
void cache_build_end(struct cache_build *b);
#define AUTO_CACHE_BUILD CLEANUP(cache_build_end)
#define CACHE_BUILD_NONE        \
    {                           \
        .lock_fd = -1, .fd = -1 \
    }
