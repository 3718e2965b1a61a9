#include "jail/jail.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 65,536 ids above the ranges that distributions, containers and systemd allocate. */
enum { DROP_ID_BASE = 0x70000000, DROP_ID_COUNT = 0x10000 };

void jail_identity(const char *name, struct jail_identity *ret)
{
    *ret = (struct jail_identity){.uid = geteuid(), .gid = getegid()};
    if (ret->uid != 0)
        return;
    uint32_t h = 2166136261U; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619U;
    ret->uid = ret->gid = DROP_ID_BASE + h % DROP_ID_COUNT;
    ret->dropped = true;
}

int jail_unshare(struct err *e)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) == 0)
        return 0;
    int code = errno;
    err_sys(e, code, "cannot create the sandbox's namespaces");
    err_hint(e, "allow unprivileged user namespaces; see `msb doctor`");
    return -code;
}

static int write_proc(pid_t pid, const char *file, const char *text)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : write_all(fd, text, strlen(text));
}

int jail_map(pid_t child, const struct jail_identity *id, struct err *e)
{
    char map[64];
    (void)snprintf(map, sizeof(map), "%u %u 1\n", id->dropped ? 0 : id->uid, id->uid);
    int r = write_proc(child, "uid_map", map);
    if (r == 0 && !id->dropped) /* without it an ordinary user may not write gid_map */
        r = write_proc(child, "setgroups", "deny");
    (void)snprintf(map, sizeof(map), "%u %u 1\n", id->dropped ? 0 : id->gid, id->gid);
    if (r == 0)
        r = write_proc(child, "gid_map", map);
    return r < 0 ? err_sys(e, -r, "cannot map the sandbox's user") : 0;
}

int jail_become(const struct jail_identity *id, struct err *e)
{
    if (!id->dropped)
        return 0;
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_sys(e, errno, "cannot become the sandbox's user");
    return 0;
}

int jail_mount_tmpfs(const char *dir, const char *options, struct err *e)
{
    /* Not noexec: a user-mode kernel maps its guest's memory, which is a file in here. */
    if (mount("msb", dir, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0 || chdir(dir) < 0)
        return err_sys(e, errno, "cannot mount a tmpfs for the sandbox");
    return 0;
}

int jail_pivot(struct err *e)
{
    /* Both arguments ".": the old root ends up stacked on the new one, and is unmounted from it. */
    if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_sys(e, errno, "cannot enter the sandbox's root");
    return 0;
}

int jail_enter_root(struct err *e)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(e, errno, "cannot make the sandbox's mounts private");
    if (mkdir("jail", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot create the sandbox's mount point");
    if (mount("msb", "jail", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "size=64k,nr_inodes=16,mode=0755") < 0)
        return err_sys(e, errno, "cannot mount the sandbox's root");
    if (mkdir("jail/run", 0700) < 0 || mkdir("jail/jail", 0700) < 0 ||
        mount(".", "jail/run", NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, "jail/run", NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC,
              NULL) < 0 ||
        chdir("jail") < 0)
        return err_sys(e, errno, "cannot set up the sandbox's root");
    int r = jail_pivot(e);
    if (r < 0)
        return r;
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "size=64k,nr_inodes=16,mode=0755") < 0)
        return err_sys(e, errno, "cannot close the sandbox's root");
    return 0;
}

int jail_set_limits(const struct jail_limit *limits, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        struct rlimit rl;
        if (getrlimit(limits[i].what, &rl) < 0)
            return err_sys(e, errno, "cannot read limits");
        rl.rlim_cur = rl.rlim_max = MIN(rl.rlim_max, limits[i].most);
        if (setrlimit(limits[i].what, &rl) < 0)
            return err_sys(e, errno, "cannot set limits");
    }
    return 0;
}

int jail_keep_caps(uint64_t keep, struct err *e)
{
    for (unsigned long cap = 0; cap < 64; cap++)
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
            return err_sys(e, errno, "cannot drop capabilities");
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct hdr = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    if (syscall(SYS_capget, &hdr, data) < 0)
        return err_sys(e, errno, "cannot read capabilities");
    for (unsigned i = 0; i < 2; i++) {
        uint32_t some = data[i].permitted & (uint32_t)(keep >> 32 * i);
        data[i] = (struct __user_cap_data_struct){.effective = some, .permitted = some};
    }
    if (syscall(SYS_capset, &hdr, data) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(e, errno, "cannot drop capabilities");
    return 0;
}

int jail_drop_caps(struct err *e)
{
    return jail_keep_caps(0, e);
}

bool jail_has_cap(unsigned cap)
{
    struct __user_cap_header_struct hdr = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    return syscall(SYS_capget, &hdr, data) == 0 && data[cap / 32].effective >> cap % 32 & 1;
}
