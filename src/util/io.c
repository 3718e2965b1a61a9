#include "util/io.h"

#include <errno.h>
#include <unistd.h>

int pwrite_all(int fd, const void *p, size_t n, uint64_t offset)
{
    for (const char *b = p; n;) {
        ssize_t w = pwrite(fd, b, n, (off_t)offset);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -errno;
        b += w;
        n -= (size_t)w;
        offset += (uint64_t)w;
    }
    return 0;
}

int pread_all(int fd, void *p, size_t n, uint64_t offset)
{
    for (char *b = p; n;) {
        ssize_t k = pread(fd, b, n, (off_t)offset);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        b += k;
        n -= (size_t)k;
        offset += (uint64_t)k;
    }
    return 0;
}
