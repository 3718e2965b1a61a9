/* Contents that were fetched before, for all workspaces of this home: $MSB_HOME/cache/objects.
 *
 * A content is found by its hash, which every reader checks: anything damaged, or put there by a
 * process that a server has compromised, is fetched again. Files appear by rename, once complete.
 * The most recently used ones stay, up to CACHE_BYTES; removing one while it is being read does no
 * harm, nor do two processes that add the same.
 */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CACHE_BYTES (2ULL << 30)
enum { CACHE_FILES = 50 * 1000, CACHE_FILE_BYTES = 64 << 20, CHUNK = 1 << 18 };

static void name_of(const char *sha, char out[80])
{
    (void)snprintf(out, 80, "sha256-%.64s", sha);
}

/* Copies all of `from` to the beginning of `to`. sha: receives the hash of what was written, or
 * NULL. */
static int copy(int from, int to, uint64_t size, char *sha)
{
    struct hasher h;
    AUTO_FREE char *chunk = malloc(CHUNK);
    if (!chunk)
        return -ENOMEM;
    hasher_init(&h);
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < size; at += CHUNK) {
        size_t n = (size_t)MIN(size - at, (uint64_t)CHUNK);
        r = pread_all(from, chunk, n, at);
        if (r == 0 && sha)
            hasher_update(&h, chunk, n);
        if (r == 0)
            r = pwrite_all(to, chunk, n, at);
    }
    if (r == 0 && sha)
        hasher_hex(&h, sha);
    return r;
}

bool s3_cache_get(struct s3_work *w, const struct s3_entry *of, int fd, struct s3_content *ret)
{
    char name[80];
    struct stat st;
    if (w->cache < 0 || !of->sha[0] || of->guessed)
        return false;
    name_of(of->sha, name);
    AUTO_CLOSE int from = openat(w->cache, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0 || fstat(from, &st) < 0)
        return false;
    bool good = S_ISREG(st.st_mode) && (uint64_t)st.st_size == of->size &&
                copy(from, fd, of->size, ret->sha) == 0 && strcmp(ret->sha, of->sha) == 0;
    if (!good) {
        (void)unlinkat(w->cache, name, 0);
        return false;
    }
    (void)futimens(from, NULL); /* just used */
    ret->size = of->size;
    ret->object = (struct s3_object){.size = (int64_t)of->size, .mtime_ns = -1, .mode = -1};
    return pread_all(fd, ret->target, (size_t)MIN(of->size, (uint64_t)S3_TARGET_MAX), 0) == 0;
}

/* --- room ------------------------------------------------------------------------------------ */

struct kept {
    struct timespec used;
    uint64_t size;
    char name[80];
};

static int by_use(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return x->used.tv_nsec < y->used.tv_nsec ? -1 : x->used.tv_nsec > y->used.tv_nsec;
}

/* Checks everything, and removes the least recently used. Under the lock. */
static void make_room(struct s3_work *w)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(w->cache, ".");
    AUTO_FREE struct kept *v = calloc(2L * CACHE_FILES, sizeof(*v));
    const struct dirent *entry;
    struct stat st;
    size_t n = 0;
    uint64_t bytes = 0;
    w->cache_left = 0;
    if (!d || !v)
        return;
    while (n < 2L * CACHE_FILES && (entry = readdir(d))) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(v->name) ||
            fstatat(w->cache, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        v[n] = (struct kept){.used = st.st_mtim, .size = (uint64_t)st.st_size};
        (void)snprintf(v[n++].name, sizeof(v->name), "%.79s", entry->d_name);
        bytes += (uint64_t)st.st_size;
    }
    w->cache_left = bytes < CACHE_BYTES ? CACHE_BYTES - bytes : 0;
    if (bytes < CACHE_BYTES && n < CACHE_FILES)
        return;
    qsort(v, n, sizeof(*v), by_use);
    for (size_t i = 0;
         i < n && (bytes > CACHE_BYTES / 10 * 9 || n - i > (size_t)CACHE_FILES / 10 * 9); i++) {
        (void)unlinkat(w->cache, v[i].name, 0);
        bytes -= v[i].size;
    }
    w->cache_left = bytes < CACHE_BYTES ? CACHE_BYTES - bytes : 0;
}

void s3_cache_put(struct s3_work *w, const struct s3_content *c)
{
    char name[80], tmp[80];
    if (w->cache < 0 || c->size == 0 || c->size > CACHE_FILE_BYTES)
        return;
    name_of(c->sha, name);
    (void)pthread_mutex_lock(&w->lock);
    if (w->cache_left < c->size)
        make_room(w);
    bool room = w->cache_left >= c->size;
    w->cache_left -= room ? c->size : 0;
    (void)pthread_mutex_unlock(&w->lock);
    (void)snprintf(tmp, sizeof(tmp), "new-%d-%u", (int)getpid(), atomic_fetch_add(&w->serial, 1));
    AUTO_CLOSE int to =
        room ? openat(w->cache, tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (to < 0)
        return;
    if (copy(c->fd, to, c->size, NULL) < 0 || /* readers check its hash */
        renameat(w->cache, tmp, w->cache, name) < 0)
        (void)unlinkat(w->cache, tmp, 0);
}
