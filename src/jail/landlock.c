#include "jail/landlock.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in a current kernel's linux/landlock.h: the build's headers may be older than the host. */
enum { CREATE_RULESET_VERSION = 1, RULE_PATH_BENEATH = 1 };

struct ruleset_attr {
    uint64_t fs, net, scoped;
};

struct path_beneath_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_FIRST = (1 << 13) - 1, /* what the first version knows */
    FS_REFER = 1 << 13,       /* version 2 */
    FS_TRUNCATE = 1 << 14,    /* version 3 */
    FS_IOCTL_DEV = 1 << 15,   /* version 5 */
    FS_OF_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV,
    SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0, /* version 6 */
    SCOPE_SIGNAL = 1 << 1,
};

int landlock_version(void)
{
    long v = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_RULESET_VERSION);
    return v < 0 ? 0 : (int)v;
}

static struct ruleset_attr all_of(int version)
{
    struct ruleset_attr a = {.fs = FS_FIRST};
    if (version >= 2)
        a.fs |= FS_REFER;
    if (version >= 3)
        a.fs |= FS_TRUNCATE;
    if (version >= 5)
        a.fs |= FS_IOCTL_DEV;
    if (version >= 6)
        a.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL;
    return a;
}

static int grant(int ruleset, uint64_t known, const struct landlock_grant *g)
{
    struct stat st;
    if (fstat(g->fd, &st) < 0)
        return -errno;
    uint64_t allowed = FS_READ_FILE | FS_READ_DIR;
    if (g->write)
        allowed = known & ~(uint64_t)FS_EXECUTE;
    if (g->execute)
        allowed |= FS_EXECUTE;
    struct path_beneath_attr p = {.allowed = S_ISDIR(st.st_mode) ? allowed : allowed & FS_OF_FILES,
                                  .parent_fd = g->fd};
    long r = syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &p, 0);
    return r < 0 ? -errno : 0;
}

int landlock_enter(const struct landlock_grant *grants, size_t n)
{
    int version = landlock_version();
    if (version == 0)
        return -EOPNOTSUPP;
    struct ruleset_attr a = all_of(version);
    AUTO_CLOSE int fd = (int)syscall(SYS_landlock_create_ruleset, &a, sizeof(a), 0);
    if (fd < 0)
        return -errno;
    for (size_t i = 0; i < n; i++) {
        int r = grant(fd, a.fs, &grants[i]);
        if (r < 0)
            return r;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        syscall(SYS_landlock_restrict_self, fd, 0) < 0)
        return -errno;
    return 0;
}
