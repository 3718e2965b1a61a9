#include "jail/jail.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ID_MAP_MAX = 16 * 1024 };

/* Ranges of ids for what root starts, best first: above everything that distributions, containers
 * and systemd allocate; and, if a user namespace only has 65,536 ids, between a system's users and
 * systemd's dynamic ones. */
static const struct {
    uint32_t base, count;
} drop_ids[] = {{0x70000000, 0x10000}, {0xa000, 0x4000}};

/* Calls fn for each line of an id map, which names ids of this user namespace, until it returns
 * true. */
static bool each_mapped(const char *file, bool (*fn)(uint32_t first, uint32_t count, void *arg),
                        void *arg)
{
    AUTO_FREE char *text = NULL;
    if (file_read_at(AT_FDCWD, file, ID_MAP_MAX, &text, NULL) < 0)
        return false;
    uint32_t first, count;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (sscanf(line, "%" SCNu32 " %*u %" SCNu32, &first, &count) == 2 && fn(first, count, arg))
            return true;
    return false;
}

static bool has_id(uint32_t first, uint32_t count, void *arg)
{
    uint32_t id = *(const uint32_t *)arg;
    return id >= first && id - first < count;
}

/* Whether that user and group exist here, and we may become them and give them files. */
static bool may_become(uint32_t id)
{
    return jail_has_cap(CAP_SETUID) && jail_has_cap(CAP_SETGID) && jail_has_cap(CAP_CHOWN) &&
           each_mapped("/proc/self/uid_map", has_id, &id) &&
           each_mapped("/proc/self/gid_map", has_id, &id);
}

void jail_identity(const char *name, struct jail_identity *ret)
{
    *ret = (struct jail_identity){.uid = geteuid(), .gid = getegid()};
    if (ret->uid != 0)
        return;
    uint32_t h = 2166136261U; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619U;
    for (size_t i = 0; !ret->dropped && i < ARRAY_LEN(drop_ids); i++) {
        uint32_t id = drop_ids[i].base + h % drop_ids[i].count;
        if (may_become(id))
            *ret = (struct jail_identity){.uid = id, .gid = id, .dropped = true};
    }
}

void jail_yield_memory(void)
{
    static const char file[] = "/proc/self/oom_score_adj";
    AUTO_FREE char *text = NULL;
    char score[16];
    if (file_read_at(AT_FDCWD, file, sizeof(score), &text, NULL) == 0 &&
        strtol(text, NULL, 10) >= JAIL_OOM_SCORE)
        return;
    AUTO_CLOSE int fd = open(file, O_WRONLY | O_CLOEXEC);
    int n = snprintf(score, sizeof(score), "%d", JAIL_OOM_SCORE);
    if (fd >= 0)
        (void)write_all(fd, score, (size_t)n);
}

int jail_unshare(struct err *e)
{
    /* Security modules may allow namespaces, but not mounts in them. */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) == 0 &&
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return 0;
    int code = errno;
    return err_hinted(e, err_sys(e, code, "cannot create the sandbox's namespaces"),
                      "allow unprivileged user namespaces; see `msb doctor`");
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
    if (r == 0)
        return 0;
    return err_hinted(e, err_sys(e, -r, "cannot map the sandbox's user in its namespaces"),
                      "allow unprivileged user namespaces; see `msb doctor`");
}

static bool add_line(uint32_t first, uint32_t count, void *arg)
{
    FILE *f = arg;
    (void)fprintf(f, "%" PRIu32 " %" PRIu32 " %" PRIu32 "\n", first, first, count);
    return false;
}

static int copy_map(pid_t child, const char *own, const char *file)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return -ENOMEM;
    (void)each_mapped(own, add_line, f);
    return fclose(f) < 0 ? -ENOMEM : write_proc(child, file, text);
}

int jail_map_all(pid_t child, struct err *e)
{
    int r = copy_map(child, "/proc/self/uid_map", "uid_map");
    if (r == 0)
        r = copy_map(child, "/proc/self/gid_map", "gid_map");
    return r < 0 ? err_sys(e, -r, "cannot map the users of a helper") : 0;
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

int jail_drop_bounding(uint64_t keep, struct err *e)
{
    /* The set limits what an executed program could gain, which no_new_privs rules out anyway;
     * dropping from it requires CAP_SETPCAP. */
    bool may = jail_has_cap(CAP_SETPCAP);
    for (unsigned long cap = 0; may && cap < 64; cap++)
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
            return err_sys(e, errno, "cannot drop capabilities");
    return 0;
}

int jail_keep_caps(uint64_t keep, struct err *e)
{
    int r = jail_drop_bounding(keep, e);
    if (r < 0)
        return r;
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

int jail_pass_cap(unsigned cap, struct err *e)
{
    struct __user_cap_header_struct hdr = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    if (syscall(SYS_capget, &hdr, data) == 0) {
        data[cap / 32].inheritable |= 1U << cap % 32;
        if (syscall(SYS_capset, &hdr, data) == 0 &&
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) == 0)
            return 0;
    }
    return err_sys(e, errno, "cannot pass on a capability");
}

bool jail_has_cap(unsigned cap)
{
    struct __user_cap_header_struct hdr = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    return syscall(SYS_capget, &hdr, data) == 0 && data[cap / 32].effective >> cap % 32 & 1;
}
