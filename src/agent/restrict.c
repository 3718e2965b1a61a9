#include "agent/restrict.h"

#include "agent/files.h"
#include "agent/pids.h"
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

/* Makes it a separate mount, with everything mounted below it, so that its attributes can
 * differ. */
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

static bool is_disk(int dir, const struct dirent *de)
{
    struct stat st;
    if (de->d_type != DT_UNKNOWN)
        return de->d_type == DT_BLK;
    return fstatat(dir, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISBLK(st.st_mode);
}

/* Nodes of disks and of memory. /dev tells the type of each entry, so that none has to be
 * examined. */
static void remove_nodes(void)
{
    AUTO_CLOSEDIR DIR *d = opendir("/dev");
    const struct dirent *de;
    while (d && (de = readdir(d))) {
        bool memory = strcmp(de->d_name, "mem") == 0 || strcmp(de->d_name, "kmem") == 0 ||
                      strcmp(de->d_name, "port") == 0;
        if (memory || is_disk(dirfd(d), de))
            (void)unlinkat(dirfd(d), de->d_name, 0);
    }
}

/* In /proc, processes stay writable: a program may set its own name or OOM score. The rest, which
 * configures the kernel, becomes separate mounts, which are made read-only with all others. */
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

/* Programs that the kernel itself starts (for example, for keys) get no capabilities: they might be
 * in a writable path. */
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
static int drop_capabilities(uint64_t keep, struct err *e)
{
    for (unsigned i = 0; i < 64; i++)
        if (!(keep & UINT64_C(1) << i) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0) {
            if (errno == EINVAL) /* the kernel knows no higher ones */
                return 0;
            return err_sys(e, errno, "cannot give up capability %u", i);
        }
    return 0;
}

/* The capabilities that could undo a restriction on writes. */
static uint64_t undoing_capabilities(void)
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
    uint64_t bits = 0;
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        bits |= UINT64_C(1) << gone[i];
    return bits;
}

/* Without the right to administer the kernel, programs may not change its settings, as in a
 * container: root owns the files, and could write to most without any capability. A user namespace
 * would give any program all capabilities inside it. */
static int protect_settings(struct err *e)
{
    static const char *const paths[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
                                        "/proc/sysrq-trigger"};
    struct stat st;
    int r = 0;
    remove_nodes();
    disarm_helpers();
    (void)file_write("/proc/sys/user/max_user_namespaces", "0", 1, 0);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(paths); i++) {
        if (stat(paths[i], &st) < 0)
            continue;
        r = bind_itself(paths[i], e);
        if (r == 0)
            r = set_attributes(paths[i], 0, ATTR_RDONLY, 0, e);
    }
    return r < 0 ? r : set_attributes("/sys", RECURSIVE, ATTR_RDONLY, 0, e);
}

/* --- the whole --- */

/* Nothing persists in terminals, shared memory, queues and /proc's processes, so they stay
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

static int apply_sysctl(const char *kv, struct err *e)
{
    char path[512];
    size_t key = strcspn(kv, "=");
    int n = snprintf(path, sizeof(path), "/proc/sys/%.*s", (int)key, kv);
    if (n >= (int)sizeof(path) || !kv[key])
        return err_set(e, EINVAL, "malformed setting");
    for (char *p = path + strlen("/proc/sys/"); *p; p++)
        *p = *p == '.' ? '/' : *p;
    int r = file_write(path, kv + key + 1, strlen(kv + key + 1), 0);
    return r < 0 ? err_sys(e, -r, "cannot set the sysctl %.*s", (int)key, kv) : 0;
}

int restrict_prepare(const struct config *cfg, struct err *e)
{
    int r = cfg->pids_max ? pids_limit(cfg->pids_max, e) : 0;
    for (size_t i = 0; r == 0 && i < cfg->nsysctls; i++)
        r = apply_sysctl(cfg->sysctls[i], e);
    for (size_t i = 0; r == 0 && i < cfg->nwritable; i++)
        if (!is_covered(cfg, i))
            r = prepare_path(cfg->writable[i], e);
    return r;
}

/* With a read-only root, mounts stay as requested. */
static int spare_mounts(const struct config *cfg, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < cfg->nmounts; i++)
        if (!(cfg->mounts[i].options & PROTO_MOUNT_RO))
            r = set_attributes(cfg->mounts[i].path, 0, 0, ATTR_RDONLY, e);
    return r;
}

static int restrict_writes(const struct config *cfg, struct err *e)
{
    remove_nodes();
    disarm_helpers();
    int r = split_proc(e);
    if (r == 0)
        r = set_attributes("/", RECURSIVE, ATTR_RDONLY | ATTR_NODEV, 0, e);
    if (r == 0)
        r = spare_system(e);
    if (r == 0 && cfg->read_only)
        r = spare_mounts(cfg, e);
    for (size_t i = 0; r == 0 && i < cfg->nwritable; i++)
        if (!is_covered(cfg, i))
            r = set_attributes(cfg->writable[i], RECURSIVE, 0, ATTR_RDONLY, e);
    return r;
}

int restrict_guest(const struct config *cfg, struct err *e)
{
    bool writes = cfg->nwritable || cfg->read_only;
    uint64_t keep = writes ? cfg->caps & ~undoing_capabilities() : cfg->caps;
    int r = 0;
    if (!(cfg->caps & UINT64_C(1) << CAP_SYS_ADMIN))
        r = protect_settings(e);
    else if (cfg->pids_max) /* or root could just leave the group */
        r = set_attributes("/sys/fs/cgroup", 0, ATTR_RDONLY, 0, e);
    if (r == 0 && writes)
        r = restrict_writes(cfg, e);
    if (r == 0)
        r = drop_capabilities(keep, e);
    if (r == 0 && cfg->no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        r = err_sys(e, errno, "cannot set no_new_privs");
    return r;
}
