/* Contents by their SHA-256. */
#include "image/oci/digest.h"
#include "s3/work.h"
#include "util/beneath.h"
#include "util/fs.h"
#include "util/utf8.h"
#include "versions/impl.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 128 << 10, OBJECT_NAME = 68 };

#define UNDER_WAY "t"

void depot_close(struct depot *d)
{
    close_fd(&d->dir);
    close_fd(&d->data);
    close_fd(&d->objects);
    close_fd(&d->fresh);
}

void depot_warn(void *depot, const char *text)
{
    const struct depot *d = depot;
    AUTO_FREE char *safe = strdup(text);
    if (!safe || !d->warn)
        return;
    utf8_defuse(safe);
    d->warn(safe);
}

static int make_and_open(int at, const char *name)
{
    if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    return dir_open_at(at, name);
}

int depot_open(int dir, bool make, warn_fn warn, struct depot *ret, struct err *e)
{
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    d.warn = warn;
    d.dir = make ? make_and_open(dir, VERSIONS_DIR) : dir_open_at(dir, VERSIONS_DIR);
    if (d.dir == -ENOENT)
        return -ENOENT;
    d.data = dir_open_at(dir, "data");
    d.objects = d.dir < 0 ? d.dir : make_and_open(d.dir, "objects");
    d.fresh = d.dir < 0 ? d.dir : make_and_open(d.dir, "new");
    const int all[] = {d.dir, d.data, d.objects, d.fresh};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i] < 0)
            return err_sys(e, -all[i], "cannot open the versions of the workspace");
    file_replace_sweep(d.dir);
    /* A killed restore may have left the only copy of what it replaced. */
    struct s3_work w = {.dir = -1,
                        .data = d.data,
                        .tmp = d.fresh,
                        .warn = depot_warn,
                        .warn_ctx = &d,
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    s3_work_stamp(&w);
    int r = s3_recover(&w, e);
    if (r < 0)
        return r;
    *ret = d;
    d = (struct depot)DEPOT_NONE;
    return 0;
}

/* "ab/cdef..." */
static void object_name(const char *sha, char out[OBJECT_NAME])
{
    (void)snprintf(out, OBJECT_NAME, "%.2s/%.62s", sha, sha + 2);
}

bool depot_has(const struct depot *d, const char *sha)
{
    char name[OBJECT_NAME];
    object_name(sha, name);
    return faccessat(d->objects, name, F_OK, 0) == 0 || faccessat(d->fresh, sha, F_OK, 0) == 0;
}

/* Shares blocks if the file system supports it; the hash is the copy's. */
static int copy_content(int from, int to, char sha[DIGEST_HEX_SIZE], uint64_t *size)
{
    AUTO_FREE char *chunk = NULL;
    struct digest sum;
    struct stat st = {0};
    int r = 0;
    if (ioctl(to, FICLONE, from) < 0) {
        chunk = malloc(CHUNK);
        if (!chunk)
            return -ENOMEM;
        for (ssize_t n; r == 0 && (n = read(from, chunk, CHUNK)) != 0;)
            r = n < 0 ? -errno : write_all(to, chunk, (size_t)n);
    }
    if (r == 0 && (lseek(to, 0, SEEK_SET) < 0 || fstat(to, &st) < 0))
        r = -errno;
    if (r == 0)
        r = digest_of_fd(to, &sum);
    if (r < 0)
        return r;
    digest_hex(&sum, sha);
    *size = (uint64_t)st.st_size;
    return 0;
}

static int fill(const struct depot *d, int to, struct s3_entry *a)
{
    const char *slash = strrchr(a->path, '/'), *name = slash ? slash + 1 : a->path;
    AUTO_FREE char *above = slash ? strndup(a->path, (size_t)(slash - a->path)) : strdup(".");
    if (!above)
        return -ENOMEM;
    AUTO_CLOSE int parent = beneath_dir(d->data, above, false, false);
    if (parent < 0)
        return parent;
    if (a->kind == S3_KIND_LINK) {
        char target[S3_TARGET_MAX + 1];
        ssize_t n = readlinkat(parent, name, target, sizeof(target));
        struct digest sum = digest_of(target, n < 0 ? 0 : (size_t)n);
        digest_hex(&sum, a->sha);
        return n < 0 ? -errno : write_all(to, target, (size_t)n);
    }
    struct stat st;
    AUTO_CLOSE int from = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0 || fstat(from, &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode) ? copy_content(from, to, a->sha, &a->size) : -ENOENT;
}

int depot_add(struct depot *d, struct s3_entry *a, struct err *e)
{
    char was[sizeof(a->sha)];
    memcpy(was, a->sha, sizeof(was));
    AUTO_CLOSE int to =
        openat(d->fresh, UNDER_WAY, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = to < 0 ? -errno : fill(d, to, a);
    if (r == 0 && (fchmod(to, 0400) < 0 || renameat(d->fresh, UNDER_WAY, d->fresh, a->sha) < 0))
        r = -errno;
    if (r == 0 && strcmp(was, a->sha) != 0)
        a->ino = 0; /* it has changed since it was scanned: the next checkpoint reads it again */
    return r < 0 && r != -ENOENT && r != -ELOOP && r != -ENOTDIR && r != -EINVAL
               ? err_sys(e, -r, "cannot store '%s'", a->path)
               : r;
}

int depot_settle(struct depot *d, struct err *e)
{
    AUTO_CLOSEDIR DIR *names = dir_read_at(d->fresh, ".");
    const struct dirent *entry;
    if (!names || syncfs(d->fresh) < 0)
        return err_sys(e, errno, "cannot store the version");
    int r = 0;
    while (r == 0 && (entry = readdir(names))) {
        char name[OBJECT_NAME], dir[3];
        if (strlen(entry->d_name) != 64)
            continue;
        object_name(entry->d_name, name);
        (void)snprintf(dir, sizeof(dir), "%.2s", name);
        if ((mkdirat(d->objects, dir, 0700) < 0 && errno != EEXIST) ||
            renameat(d->fresh, entry->d_name, d->objects, name) < 0)
            r = -errno;
    }
    if (r == 0 && syncfs(d->fresh) < 0)
        r = -errno;
    return r < 0 ? err_sys(e, -r, "cannot store the version") : 0;
}

static int take_link(struct depot *d, int from, const struct s3_entry *a, const char *name)
{
    char target[S3_TARGET_MAX + 1], sha[DIGEST_HEX_SIZE];
    ssize_t n = read(from, target, sizeof(target));
    if (n <= 0 || n > S3_TARGET_MAX)
        return n < 0 ? -errno : -EBADMSG;
    struct digest sum = digest_of(target, (size_t)n);
    digest_hex(&sum, sha);
    target[n] = '\0';
    if (strcmp(sha, a->sha) != 0)
        return -EBADMSG;
    return symlinkat(target, d->fresh, name) < 0 ? -errno : 0;
}

static int take_file(struct depot *d, int from, const struct s3_entry *a, const char *name)
{
    char sha[DIGEST_HEX_SIZE];
    uint64_t size;
    AUTO_CLOSE int to =
        openat(d->fresh, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = to < 0 ? -errno : copy_content(from, to, sha, &size);
    if (r == 0 && strcmp(sha, a->sha) != 0)
        r = -EBADMSG;
    return r == 0 && fchmod(to, a->mode) < 0 ? -errno : r;
}

int depot_take(struct depot *d, const struct s3_entry *a, const char *name, struct err *e)
{
    char object[OBJECT_NAME];
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {a->mtime_ns / 1000000000, a->mtime_ns % 1000000000}};
    object_name(a->sha, object);
    AUTO_CLOSE int from = openat(d->objects, object, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int r = from < 0                  ? -errno
            : a->kind == S3_KIND_LINK ? take_link(d, from, a, name)
                                      : take_file(d, from, a, name);
    if (r == -EBADMSG || r == -ENOENT)
        return err_set(e, EBADMSG, "the stored content of '%s' is damaged", a->path);
    if (r < 0)
        return err_sys(e, -r, "cannot restore '%s'", a->path);
    (void)utimensat(d->fresh, name, times, AT_SYMLINK_NOFOLLOW);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int sweep_dir(int objects, const char *dir, char *const *used, size_t n)
{
    AUTO_CLOSEDIR DIR *names = dir_read_at(objects, dir);
    const struct dirent *entry;
    while (names && (entry = readdir(names))) {
        char sha[DIGEST_HEX_SIZE + 4], *key = sha;
        if (strlen(entry->d_name) != 62)
            continue;
        (void)snprintf(sha, sizeof(sha), "%.2s%.62s", dir, entry->d_name);
        if (!(n && bsearch(&key, used, n, sizeof(*used), by_text)) &&
            unlinkat(dirfd(names), entry->d_name, 0) < 0)
            return -errno;
    }
    return names ? 0 : -errno;
}

int depot_sweep(struct depot *d, char *const *used, size_t n, struct err *e)
{
    AUTO_CLOSEDIR DIR *dirs = dir_read_at(d->objects, ".");
    const struct dirent *entry;
    int r = 0;
    if (!dirs)
        return err_sys(e, errno, "cannot remove unreferenced contents");
    while (r == 0 && (entry = readdir(dirs)))
        if (strlen(entry->d_name) == 2 && entry->d_name[0] != '.')
            r = sweep_dir(d->objects, entry->d_name, used, n);
    return r < 0 ? err_sys(e, -r, "cannot remove unreferenced contents") : 0;
}
