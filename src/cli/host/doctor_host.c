/* What the host allows, and where we are: remedies differ between a container, a chroot and one's
 * own machine. */
#include "cli/host/doctor.h"

#include "jail/jail.h"
#include "jail/kind.h"
#include "jail/landlock.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_MAX = 64 * 1024, LOW_FILES = 1024, LOW_PROCESSES = 256 };

#define SYSCTL_FILE "/etc/sysctl.d/60-msb.conf"

/* --- where we are ---------------------------------------------------------------------------- */

/* The first line of a small file; "" if there is none. */
static void read_line(const char *path, char *to, size_t size)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);
    to[n > 0 ? n : 0] = '\0';
    to[strcspn(to, "\n")] = '\0';
}

static bool is_one(const char *path)
{
    char text[16];
    read_line(path, text, sizeof(text));
    return strcmp(text, "1") == 0;
}

const char *doctor_container(void)
{
    if (getenv("KUBERNETES_SERVICE_HOST"))
        return "Kubernetes";
    if (access("/run/.containerenv", F_OK) == 0)
        return "podman";
    if (access("/.dockerenv", F_OK) == 0)
        return "Docker";
    return getenv("container");
}

/* Whether no mount is our root, so that it is a directory in a mount. */
static bool in_chroot(void)
{
    AUTO_FCLOSE FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[4096], at[2048];
    bool any = false;
    while (f && fgets(line, sizeof(line), f)) {
        any = true;
        if (sscanf(line, "%*s %*s %*s %*s %2047s", at) == 1 && strcmp(at, "/") == 0)
            return false;
    }
    return any;
}

static bool one_user(void)
{
    char line[64];
    unsigned first, outside, count;
    AUTO_FCLOSE FILE *f = fopen("/proc/self/uid_map", "re");
    bool one = f && fgets(line, sizeof(line), f) &&
               sscanf(line, "%u %u %u", &first, &outside, &count) == 3 && count == 1;
    return one && !fgets(line, sizeof(line), f);
}

/* The profile of a security module that confines us; "" = none. */
static void apparmor_profile(char *to, size_t size)
{
    read_line("/proc/self/attr/apparmor/current", to, size);
    if (!*to)
        read_line("/proc/self/attr/current", to, size);
    if (strncmp(to, "unconfined", strlen("unconfined")) == 0 || strchr(to, ':'))
        *to = '\0'; /* the latter is SELinux's */
}

static bool selinux_enforces(void)
{
    return is_one("/sys/fs/selinux/enforce");
}

/* In a container, only its processes' label shows it. */
static bool selinux_confines(void)
{
    char label[128];
    read_line("/proc/self/attr/current", label, sizeof(label));
    return selinux_enforces() || strstr(label, ":container_t:");
}

void doctor_surroundings(struct doctor *d)
{
    char profile[128], text[256] = "";
    const char *in = doctor_container();
    apparmor_profile(profile, sizeof(profile));
    if (in_chroot())
        (void)snprintf(text, sizeof(text), "a chroot");
    else if (in)
        (void)snprintf(text, sizeof(text), "a container (%.40s)", in);
    else if (one_user())
        (void)snprintf(text, sizeof(text), "a user namespace with one user");
    size_t n = strlen(text);
    if (*profile)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%sAppArmor profile %.80s", n ? ", " : "",
                              profile);
    if (n < sizeof(text) && selinux_confines())
        (void)snprintf(text + n, sizeof(text) - n, "%sSELinux%s", n ? ", " : "",
                       selinux_enforces() ? " enforcing" : "");
    if (*text)
        doctor_add(d, "Inside", MARK_OK, "%s", text);
}

/* --- namespaces ------------------------------------------------------------------------------ */

/* Runs fn in a child, which may change itself beyond repair. Returns its exit status: 0 = good,
 * an errno value otherwise. */
static int in_child(int (*fn)(void))
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return errno;
    if (pid == 0)
        _exit(fn());
    int status = process_wait(pid);
    if (status < 0)
        return -status;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

static int try_namespaces(void)
{
    struct jail_identity id = {.uid = geteuid(), .gid = getegid()};
    int r = jail_unshare(NULL);
    if (r == 0 && unshare(CLONE_NEWNET) < 0)
        r = -errno;
    return r == 0 ? -jail_map(getpid(), &id, NULL) : -r;
}

static int write_text(const char *path, const char *text)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, text, strlen(text)) < 0 ? errno : 0;
}

/* Guest memory is mapped executable from a tmpfs that we mount ourselves. */
static int try_tmpfs(void)
{
    char map[64];
    uid_t uid = geteuid(); /* before the new namespace maps them to nobody */
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return errno;
    (void)snprintf(map, sizeof(map), "0 %u 1", uid);
    (void)write_text("/proc/self/setgroups", "deny");
    (void)write_text("/proc/self/uid_map", map);
    (void)snprintf(map, sizeof(map), "0 %u 1", gid);
    (void)write_text("/proc/self/gid_map", map);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") < 0)
        return errno;
    AUTO_CLOSE int fd = open("/tmp/probe", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, 4096) < 0)
        return errno;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? errno : 0;
}

/* A share's server clones a mount and restricts the clone: Linux 5.12. */
static int try_shares(void)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY};
    /* A container's root may have to do it like ordinary users. */
    if (((geteuid() || unshare(CLONE_NEWNS) < 0) && unshare(CLONE_NEWNS | CLONE_NEWUSER) < 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return errno;
    AUTO_CLOSE int fd = (int)syscall(SYS_open_tree, AT_FDCWD, "/",
                                     OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (fd < 0 ||
        syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        return errno;
    return 0;
}

static int try_seccomp(void)
{
    static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog prog = {.len = 1, .filter = allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return errno;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) < 0 ? errno : 0;
}

static int try_supervision(void)
{
    int fd = seccomp_enter_supervised(SECCOMP_UML);
    return fd < 0 ? -fd : 0;
}

/* The setting that would help, if there is one that we may name. */
static void sysctl_remedy(struct check *c, const char *path, const char *name, const char *value)
{
    char text[32];
    read_line(path, text, sizeof(text));
    if (!*text || strcmp(text, value) == 0)
        return;
    c->sysctl = name;
    c->value = value;
    doctor_remedy(c, "as root: sysctl -w %s=%s (or: msb doctor --fix)", name, value);
}

static void namespaces_remedy(struct check *c)
{
    char text[128];
    read_line("/proc/sys/user/max_user_namespaces", text, sizeof(text));
    if (strcmp(text, "0") == 0) {
        sysctl_remedy(c, "/proc/sys/user/max_user_namespaces", "user.max_user_namespaces", "15000");
    } else if (in_chroot()) {
        doctor_remedy(c, "for the full jail, run msb outside of the chroot, or enter its directory "
                         "with systemd-nspawn or pivot_root instead");
    } else if (doctor_container()) {
        apparmor_profile(text, sizeof(text));
        doctor_remedy(c,
                      "for the full jail, start the container with --security-opt "
                      "seccomp=unconfined%s%s, or with a profile that allows unshare and mount",
                      *text ? " --security-opt apparmor=unconfined" : "",
                      selinux_confines() ? " --security-opt label=disable" : "");
    } else {
        doctor_remedy(c, "allow unprivileged user namespaces");
        sysctl_remedy(c, "/proc/sys/kernel/unprivileged_userns_clone",
                      "kernel.unprivileged_userns_clone", "1");
        sysctl_remedy(c, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                      "kernel.apparmor_restrict_unprivileged_userns", "0");
        if (!c->sysctl && selinux_enforces())
            doctor_remedy(c, "allow what SELinux refuses: 'ausearch -m avc -ts recent' shows it");
    }
}

/* What the reduced jail relies on, and the process that talks to a bucket's server. */
static void check_landlock(struct doctor *d, bool reduced)
{
    int version = landlock_version();
    if (version >= 6)
        doctor_add(d, "Landlock", MARK_OK, "version %d: files and signals stay inside", version);
    else if (version > 0)
        doctor_add(d, "Landlock", MARK_OK, "version %d: files stay inside", version);
    else
        doctor_remedy(
            doctor_add(
                d, "Landlock", MARK_WARN,
                reduced
                    ? "not available: a compromised monitor or share server could open your files"
                    : "not available: a server of S3 buckets that compromised the process which "
                      "syncs them could open your files"),
            "use Linux 5.13 or newer with landlock in its lsm= list");
}

static void check_tmpfs(struct doctor *d)
{
    int code = in_child(try_tmpfs);
    if (code == 0)
        doctor_add(d, "tmpfs", MARK_OK, "can be mounted, and programs run from it");
    else
        doctor_remedy(
            doctor_add(d, "tmpfs", MARK_FAIL, "programs cannot run from a tmpfs: %s",
                       strerror(code)),
            "allow mounts in user namespaces (in a container: an unconfined AppArmor profile)");
}

static void check_shares(struct doctor *d)
{
    int code = in_child(try_shares);
    if (code == 0)
        doctor_add(d, "Shares", MARK_OK,
                   "host directories and volumes can be mounted in sandboxes");
    else
        doctor_remedy(
            doctor_add(d, "Shares", MARK_WARN, "host directories and volumes cannot be mounted: %s",
                       strerror(code)),
            code == ENOSYS ? "use Linux 5.12 or newer" : "allow mounts in user namespaces");
}

void doctor_namespaces(struct doctor *d)
{
    struct err e = {0};
    enum jail_kind jail = JAIL_AUTO;
    if (jail_kind_resolve(&jail, &e) < 0) {
        doctor_remedy(doctor_add(d, "MSB_JAIL", MARK_FAIL, "%s", e.msg), "unset MSB_JAIL");
        return;
    }
    int code = in_child(try_namespaces);
    d->refused = code != 0;
    if (code == 0) {
        doctor_add(d, "Namespaces", MARK_OK, "user, mount, pid, net, ipc and uts can be created");
        check_tmpfs(d);
        check_shares(d);
    } else if (jail == JAIL_FULL) {
        namespaces_remedy(doctor_add(d, "Namespaces", MARK_FAIL,
                                     "refused (%s), and MSB_JAIL is full", strerror(code)));
    } else {
        namespaces_remedy(doctor_add(d, "Namespaces", MARK_WARN,
                                     "refused (%s): sandboxes run in a reduced jail",
                                     strerror(code)));
    }
    check_landlock(d, d->refused || jail == JAIL_REDUCED);
}

/* --- the rest -------------------------------------------------------------------------------- */

void doctor_seccomp(struct doctor *d)
{
    int code = in_child(try_seccomp), supervision = in_child(try_supervision);
    if (code)
        doctor_remedy(
            doctor_add(d, "seccomp", MARK_FAIL, "filters cannot be installed: %s", strerror(code)),
            "use a kernel with CONFIG_SECCOMP_FILTER");
    else if (supervision && d->refused)
        doctor_remedy(doctor_add(d, "seccomp", MARK_FAIL,
                                 "filters cannot be supervised (%s), and a reduced jail needs that",
                                 strerror(supervision)),
                      "run msb outside of a container that intercepts system calls");
    else if (supervision)
        doctor_remedy(
            doctor_add(d, "seccomp", MARK_WARN,
                       "the uml engine cannot limit the memory of all processes of a guest: %s",
                       strerror(supervision)),
            "run msb outside of a container that intercepts system calls");
    else
        doctor_add(d, "seccomp", MARK_OK, "filters can be installed and supervised");
}

/* `unit`: of ulimit's numbers. */
static void check_limit(struct doctor *d, int what, const char *name, const char *option,
                        rlim_t low, unsigned unit)
{
    struct rlimit rl;
    if (getrlimit((__rlimit_resource_t)what, &rl) < 0 || rl.rlim_max >= low)
        return;
    doctor_remedy(
        doctor_add(d, "Limits", MARK_WARN, "only %llu %s", (unsigned long long)rl.rlim_max, name),
        "raise the hard limit: ulimit -H%s %llu (containers: --ulimit)", option,
        (unsigned long long)low / unit);
}

void doctor_limits(struct doctor *d)
{
    size_t before = d->n;
    check_limit(d, RLIMIT_NOFILE, "open files", "n", LOW_FILES, 1);
    check_limit(d, RLIMIT_NPROC, "processes", "u", LOW_PROCESSES, 1);
    check_limit(d, RLIMIT_AS, "bytes of address space", "v", 1ULL << 36, 1024);
    check_limit(d, RLIMIT_FSIZE, "bytes in a file", "f", 1ULL << 33, 1024);
    if (d->n == before)
        doctor_add(d, "Limits", MARK_OK, "of files, processes and memory are high enough");
}

/* --- what can be done ------------------------------------------------------------------------ */

static bool confirmed(const struct check *c)
{
    char answer[16] = "";
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return false;
    (void)fprintf(stderr, "Set %s=%s, now and in " SYSCTL_FILE "? [y/N] ", c->sysctl, c->value);
    (void)fflush(stderr);
    return fgets(answer, sizeof(answer), stdin) && (*answer == 'y' || *answer == 'Y');
}

static int set(const struct check *c)
{
    char path[256], line[256];
    (void)snprintf(path, sizeof(path), "/proc/sys/%s", c->sysctl);
    for (char *p = path + strlen("/proc/sys/"); *p; p++)
        if (*p == '.')
            *p = '/';
    int code = write_text(path, c->value);
    if (code)
        return -code;
    int n = snprintf(line, sizeof(line), "%s = %s\n", c->sysctl, c->value);
    AUTO_CLOSE int fd = open(SYSCTL_FILE, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : write_all(fd, line, (size_t)n);
}

int doctor_fix(const struct doctor *d, bool ask)
{
    int done = 0;
    for (size_t i = 0; i < d->n; i++) {
        const struct check *c = &d->checks[i];
        if (!c->sysctl || (ask && !confirmed(c)))
            continue;
        int r = set(c);
        if (r < 0)
            return r;
        done++;
    }
    return done;
}
