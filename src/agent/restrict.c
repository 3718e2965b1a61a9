#include "agent/restrict.h"

#include "agent/files.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From <linux/mount.h> and <linux/capability.h>, which musl does not include. */
enum {
    CAP_DAC_READ_SEARCH = 2,
    CAP_SYS_MODULE = 16,
    CAP_SYS_RAWIO = 17,
    CAP_SYS_PTRACE = 19,
    CAP_SYS_ADMIN = 21,
    CAP_SYS_BOOT = 22,
    CAP_MKNOD = 27,
    CAP_PERFMON = 38,
    CAP_BPF = 39,
    CAP_CHECKPOINT_RESTORE = 40,
};

struct attributes {
    uint64_t set, clear, propagation, userns_fd;
};
enum { ATTR_RDONLY = 1, ATTR_NODEV = 4 };
enum { RECURSIVE = 0x8000 };

static int set_attributes(const char *path, unsigned how, uint64_t set, uint64_t clear,
                          struct err *e)
{
    struct attributes a = {.set = set, .clear = clear};
    if (syscall(SYS_mount_setattr, AT_FDCWD, path, how, &a, sizeof(a)) == 0)
        return 0;
    return err_sys(e, errno, "cannot restrict writes to %s", path);
}

/* Makes it a mount of its own, with everything mounted below, so that its attributes can differ. */
static int bind_itself(const char *path, struct err *e)
{
    if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) < 0)
        return err_sys(e, errno, "cannot restrict writes to %s", path);
    return 0;
}

/* --- the listed paths --- */

static bool is_within(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* Another listed path contains it, or is the same and comes first. */
static bool is_covered(const struct config *cfg, size_t i)
{
    for (size_t j = 0; j < cfg->nwritable; j++)
        if (j != i && is_within(cfg->writable[i], cfg->writable[j]) &&
            (strcmp(cfg->writable[i], cfg->writable[j]) != 0 || j < i))
            return true;
    return false;
}

static int prepare_path(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        int r = mkdir_parents(path, 0755);
        if (r < 0)
            return err_sys(e, -r, "cannot create the write path %s", path);
    }
    return bind_itself(path, e);
}

/* --- ways to undo it --- */

/* Nodes of disks and of memory. */
static void remove_nodes(void)
{
    AUTO_CLOSEDIR DIR *d = opendir("/dev");
    const struct dirent *de;
    struct stat st;
    while (d && (de = readdir(d))) {
        bool memory = strcmp(de->d_name, "mem") == 0 || strcmp(de->d_name, "kmem") == 0 ||
                      strcmp(de->d_name, "port") == 0;
        if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            (S_ISBLK(st.st_mode) || memory))
            (void)unlinkat(dirfd(d), de->d_name, 0);
    }
}

/* In /proc, processes stay writable: a program may set its own name or OOM score. The rest, which
 * configures the kernel, becomes mounts of their own, which are made read-only with all others. */
static int split_proc(struct err *e)
{
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    const struct dirent *de;
    struct stat st;
    char path[NAME_MAX + 8];
    if (!d)
        return err_sys(e, errno, "cannot restrict writes to /proc");
    while ((de = readdir(d))) {
        if (de->d_name[0] == '.' || isdigit((unsigned char)de->d_name[0]) ||
            fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%s", de->d_name);
        if (!S_ISDIR(st.st_mode) && !(S_ISREG(st.st_mode) && (st.st_mode & 0222)))
            continue;
        int r = bind_itself(path, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Programs that the kernel itself starts (for keys, say) get no capabilities: they might be in a
 * writable path. */
static void disarm_helpers(void)
{
    static const char *const files[] = {"/proc/sys/kernel/usermodehelper/bset",
                                        "/proc/sys/kernel/usermodehelper/inheritable"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_CLOSE int fd = open(files[i], O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            (void)!write(fd, "0\t0\n", 4);
    }
}

/* For everything that this process will ever execute. */
static int drop_capabilities(struct err *e)
{
    static const unsigned gone[] = {
        CAP_SYS_ADMIN,       /* mount, remount */
        CAP_MKNOD,           /* nodes of disks */
        CAP_SYS_RAWIO,       /* ports, memory, commands to disks */
        CAP_SYS_MODULE,      /* code in the kernel */
        CAP_SYS_BOOT,        /* another kernel */
        CAP_BPF,             /* ... */
        CAP_PERFMON,         /* ... */
        CAP_SYS_PTRACE,      /* PID 1, which has all rights */
        CAP_DAC_READ_SEARCH, /* files by handle, through a writable mount of the same disk */
        CAP_CHECKPOINT_RESTORE,
    };
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        if (prctl(PR_CAPBSET_DROP, gone[i], 0, 0, 0) < 0)
            return err_sys(e, errno, "cannot give up capability %u", gone[i]);
    return 0;
}

/* --- the whole --- */

/* Nothing persists in terminals, shared memory, queues and the processes of /proc, so they stay
 * writable. Device nodes work in /dev and nowhere else. */
static int spare_system(struct err *e)
{
    static const struct {
        const char *path;
        uint64_t clear;
    } spared[] = {
        {"/proc", ATTR_RDONLY},
        {"/dev", ATTR_NODEV},
        {"/dev/pts", ATTR_RDONLY | ATTR_NODEV},
        {"/dev/shm", ATTR_RDONLY},
        {"/dev/mqueue", ATTR_RDONLY},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(spared); i++) {
        r = set_attributes(spared[i].path, 0, 0, spared[i].clear, e);
        if (r == -EINVAL) { /* not a mount: this kernel does not have it */
            err_clear(e);
            r = 0;
        }
    }
    return r;
}

int restrict_prepare(const struct config *cfg, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < cfg->nwritable; i++)
        if (!is_covered(cfg, i))
            r = prepare_path(cfg->writable[i], e);
    return r;
}

int restrict_writes(const struct config *cfg, struct err *e)
{
    remove_nodes();
    disarm_helpers();
    int r = split_proc(e);
    if (r == 0)
        r = set_attributes("/", RECURSIVE, ATTR_RDONLY | ATTR_NODEV, 0, e);
    if (r == 0)
        r = spare_system(e);
    for (size_t i = 0; r == 0 && i < cfg->nwritable; i++)
        if (!is_covered(cfg, i))
            r = set_attributes(cfg->writable[i], RECURSIVE, 0, ATTR_RDONLY, e);
    return r < 0 ? r : drop_capabilities(e);
}
