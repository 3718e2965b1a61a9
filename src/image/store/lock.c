#include "image/store/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "util/cleanup.h"

int lock_take(int dirfd, const char *name, bool wait)
{
    for (;;) {
        AUTO_CLOSE int fd =
            openat(dirfd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
        if (fd < 0)
            return -errno;
        while (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0)
            if (errno != EINTR)
                return -errno;
        /* The last holder removes the file: a lock on a removed file keeps nobody out. */
        struct stat mine, there;
        if (fstat(fd, &mine) < 0)
            return -errno;
        if (fstatat(dirfd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_dev == there.st_dev &&
            mine.st_ino == there.st_ino)
            return steal_fd(&fd);
    }
}

void lock_drop(int dirfd, const char *name, int fd)
{
    (void)unlinkat(dirfd, name, 0);
    (void)close(fd);
}
