#include "util/later.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* #syscalls:fs openat newfstatat fchmodat */

enum { TRIES = 16 }; /* somebody else may be taking the permission back */

bool later_get(int fd, char id[LATER_SIZE])
{
    ssize_t n = fgetxattr(fd, LATER_XATTR, id, LATER_SIZE - 1);
    id[n > 0 ? n : 0] = '\0';
    return n >= 0 || errno == ERANGE;
}

static int mark(int fd, const char *xattr, const void *value, size_t size)
{
    int r = value ? fsetxattr(fd, xattr, value, size, 0) : fremovexattr(fd, xattr);
    return r < 0 ? -errno : 0;
}

/* Our own files that are read-only have to be writable for a moment. Meanwhile they have the sticky
 * bit, which means nothing for files: so whoever does the same at that time, or comes after one that
 * was killed (s3/scan.c), knows that the owner's write permission is not their own. path: where the
 * file is, or NULL if fd is open. */

static int get_mode(int fd, const char *path, mode_t *ret)
{
    struct stat st;
    if ((path ? stat(path, &st) : fstat(fd, &st)) < 0)
        return -errno;
    *ret = st.st_mode;
    return 0;
}

static int set_mode(int fd, const char *path, mode_t mode)
{
    return (path ? fchmodat(AT_FDCWD, path, mode, 0) : fchmod(fd, mode)) < 0 ? -errno : 0;
}

static int lend(int fd, const char *path, mode_t *own)
{
    int r = get_mode(fd, path, own);
    if (r < 0)
        return r;
    *own &= *own & S_ISVTX ? 0777 & ~S_IWUSR : 0777; /* a write removes set-ID bits anyway */
    return set_mode(fd, path, *own | LATER_LENT);
}

static int take_back(int fd, const char *path, mode_t own)
{
    mode_t mode = 0;
    int r = get_mode(fd, path, &mode);
    return r == 0 && mode & S_ISVTX ? set_mode(fd, path, own) : r;
}

int later_mark(int fd, const char *xattr, const void *value, size_t size)
{
    mode_t own = 0;
    int r = mark(fd, xattr, value, size);
    for (int i = 0; r == -EACCES && i < TRIES; i++) {
        r = lend(fd, NULL, &own);
        if (r < 0)
            return r;
        r = mark(fd, xattr, value, size);
        int back = take_back(fd, NULL, own);
        r = r < 0 ? r : back;
    }
    return r;
}

/* --- parts ----------------------------------------------------------------------------------- */

struct parts_value {
    uint64_t boot;
    uint8_t bits[LATER_PARTS_SIZE];
};

static uint64_t this_boot; /* 0 = not known */

bool later_know_boot(void)
{
    char id[64] = "";
    if (this_boot)
        return true;
    AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, id, sizeof(id) - 1);
    for (ssize_t i = 0; i < n; i++) /* random digits: half of them would be enough */
        this_boot = this_boot * 31 + (uint8_t)id[i];
    return this_boot != 0;
}

static void known_parts(const struct parts_value *v, ssize_t n, uint8_t parts[LATER_PARTS_SIZE])
{
    const ssize_t head = (ssize_t)sizeof(v->boot);
    size_t bytes = n > head && this_boot && v->boot == this_boot ? (size_t)(n - head) : 0;
    memcpy(parts, v->bits, bytes);
    memset(parts + bytes, 0, LATER_PARTS_SIZE - bytes);
}

void later_parts(const char *path, uint8_t parts[LATER_PARTS_SIZE])
{
    struct parts_value v = {0};
    known_parts(&v, getxattr(path, LATER_PARTS_XATTR, &v, sizeof(v)), parts);
}

void later_parts_of(int fd, uint8_t parts[LATER_PARTS_SIZE])
{
    struct parts_value v = {0};
    known_parts(&v, fgetxattr(fd, LATER_PARTS_XATTR, &v, sizeof(v)), parts);
}

int later_parts_set(int fd, const uint8_t parts[LATER_PARTS_SIZE], uint32_t last)
{
    struct parts_value v = {.boot = this_boot};
    if (!this_boot || last / 8 >= LATER_PARTS_SIZE)
        return -ENOTSUP;
    memcpy(v.bits, parts, sizeof(v.bits));
    size_t n = sizeof(v.boot) + last / 8 + 1;
    return later_mark(fd, LATER_PARTS_XATTR, &v, n);
}

bool later_has_part(const uint8_t parts[LATER_PARTS_SIZE], uint32_t part)
{
    return part && part / 8 < LATER_PARTS_SIZE && parts[part / 8] & 1U << part % 8;
}

int later_missing(const char *path, struct err *e)
{
    (void)err_set(e, ENODATA, "the content of '%s' is still in the workspace's bucket", path);
    err_hint(e, "fetch it with: msb workspace sync NAME");
    return -ENODATA;
}

int later_open_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_own(int of, const char *path)
{
    const int how = O_RDWR | O_NONBLOCK | O_CLOEXEC;
    char self[48];
    mode_t own = 0;
    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", of);
    int fd = open(path ? path : self, how), r = fd < 0 ? -errno : 0;
    for (int i = 0; r == -EACCES && i < TRIES; i++) {
        r = lend(of, path, &own);
        if (r < 0)
            return r;
        fd = open(path ? path : self, how);
        r = fd < 0 ? -errno : 0;
        int back = take_back(of, path, own);
        if (r == 0 && back < 0) {
            (void)close(fd);
            return back;
        }
    }
    return r < 0 ? r : fd;
}

int later_open(const char *path)
{
    return open_own(-1, path);
}

int later_reopen(int of)
{
    return open_own(of, NULL);
}
