#include "agent/pids.h"

#include "agent/mounts.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* On a separate mount without a path: the one that programs see may be read-only. */
#define ASIDE "/dev/.msb"
static int outer = -1, inner = -1; /* cgroup.procs of the root and of the group */

static int write_file(int dirfd, const char *name, const char *text)
{
    AUTO_CLOSE int fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

static int make_group(int root, uint32_t max)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%u", max);
    if (write_file(root, "cgroup.subtree_control", "+pids") < 0 ||
        (mkdirat(root, "msb", 0755) < 0 && errno != EEXIST) ||
        write_file(root, "msb/pids.max", text) < 0)
        return -1;
    outer = openat(root, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    inner = openat(root, "msb/cgroup.procs", O_WRONLY | O_CLOEXEC);
    return outer < 0 || inner < 0 || write(inner, "0", 1) != 1 ? -1 : 0;
}

int pids_limit(uint32_t max, struct err *e)
{
    if ((mkdir(ASIDE, 0700) < 0 && errno != EEXIST) ||
        mount("cgroup2", ASIDE, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              MOUNTS_CGROUP_OPTIONS) < 0)
        return err_sys(e, errno, "cannot limit the number of processes");
    AUTO_CLOSE int root = open(ASIDE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 || make_group(root, max) < 0
                ? err_sys(e, errno, "cannot limit the number of processes")
                : 0;
    (void)umount2(ASIDE, MNT_DETACH);
    (void)rmdir(ASIDE);
    return r;
}

bool pids_leave(void)
{
    return outer >= 0 && write(outer, "0", 1) == 1;
}

void pids_join(void)
{
    int saved = errno;
    (void)!write(inner, "0", 1);
    errno = saved;
}
