#include "util/sock.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

int listen_at(const char *path, int backlog)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (snprintf(a.sun_path, sizeof(a.sun_path), "%s", path) >= (int)sizeof(a.sun_path))
        return -ENAMETOOLONG;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    mode_t old = umask(0077);
    int r = bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
    (void)umask(old);
    if (r == 0 && listen(fd, backlog) < 0)
        r = -errno;
    return r < 0 ? r : steal_fd(&fd);
}
