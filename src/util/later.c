#include "util/later.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* #syscalls:fs openat newfstatat fchmodat */

bool later_get(int fd, char id[LATER_SIZE])
{
    ssize_t n = fgetxattr(fd, LATER_XATTR, id, LATER_SIZE - 1);
    id[n > 0 ? n : 0] = '\0';
    return n >= 0 || errno == ERANGE;
}

void later_parts(int fd, uint8_t parts[LATER_PARTS_SIZE])
{
    ssize_t n = fgetxattr(fd, LATER_PARTS_XATTR, parts, LATER_PARTS_SIZE);
    n = n < 0 ? 0 : n;
    memset(parts + n, 0, LATER_PARTS_SIZE - (size_t)n);
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

int later_open(const char *path)
{
    const int how = O_RDWR | O_NONBLOCK | O_CLOEXEC;
    struct stat st;
    int fd = open(path, how);
    if (fd >= 0 || errno != EACCES || stat(path, &st) < 0)
        return fd < 0 ? -errno : fd;
    if (fchmodat(AT_FDCWD, path, (st.st_mode & 07777) | S_IWUSR | S_IRUSR, 0) < 0)
        return -errno;
    fd = open(path, how);
    int r = fd < 0 ? -errno : fd;
    if (fchmodat(AT_FDCWD, path, st.st_mode & 07777, 0) < 0 && r >= 0) {
        r = -errno;
        (void)close(fd);
    }
    return r;
}
