#include "util/beneath.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int beneath_open(int dirfd, const char *path, int flags, bool links)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS |
                                      (links ? 0 : RESOLVE_NO_SYMLINKS)};
    int fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

static int make_below(int dirfd, const char *path)
{
    AUTO_CLOSE int fd = dir_open_at(dirfd, ".");
    while (fd >= 0 && *path) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(path, "/");
        if (n > NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, path, n);
        name[n] = '\0';
        path += n + strspn(path + n, "/");
        if (n == 0 || strcmp(name, ".") == 0)
            continue;
        if (strcmp(name, "..") == 0)
            return -EXDEV;
        if (mkdirat(fd, name, 0755) < 0 && errno != EEXIST)
            return -errno;
        int next = dir_open_at(fd, name);
        close_fd(&fd);
        fd = next;
    }
    return steal_fd(&fd);
}

int beneath_dir(int dirfd, const char *path, bool links, bool make)
{
    int fd = beneath_open(dirfd, path, O_RDONLY | O_DIRECTORY, links);
    return fd == -ENOENT && make ? make_below(dirfd, path) : fd;
}
