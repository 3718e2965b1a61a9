#include "agent/files.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char *slurp(int fd, size_t size, size_t *len)
{
    char *s = malloc(size + 1);
    if (!s)
        return NULL;
    size_t n = 0;
    while (n < size) {
        ssize_t r = read(fd, s + n, size - n);
        if (r <= 0) /* it has shrunk: take what there is */
            break;
        n += (size_t)r;
    }
    s[n] = '\0';
    if (len)
        *len = n;
    return s;
}

char *file_read_text(const char *path, size_t max, size_t *len)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return NULL;
    if (!S_ISREG(st.st_mode)) {
        errno = EINVAL;
        return NULL;
    }
    if (st.st_size < 0 || (uint64_t)st.st_size > max) {
        errno = EFBIG;
        return NULL;
    }
    return slurp(fd, (size_t)st.st_size, len);
}

int file_write(const char *path, const void *p, size_t n, mode_t mode)
{
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    AUTO_CLOSE int fd = open(path, flags, mode);
    if (fd < 0)
        return -errno;
    return write_all(fd, p, n);
}

int dir_ensure(const char *path, mode_t mode)
{
    struct stat st;
    if (lstat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return 0;
        if (unlink(path) < 0)
            return -errno;
    }
    return mkdir(path, mode) < 0 ? -errno : 0;
}
