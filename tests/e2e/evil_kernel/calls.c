/* System calls that are none of a guest kernel's business. */
#include "evil.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* What is allowed, with some arguments at least. */
static const short allowed[] = {
    SYS_read,
    SYS_write,
    SYS_openat,
    SYS_close,
    SYS_lseek,
    SYS_munmap,
    SYS_mprotect,
    SYS_brk,
    SYS_poll,
    SYS_futex,
    SYS_sched_yield,
    SYS_newfstatat,
    SYS_statfs,
    SYS_mkdir,
    SYS_unlink,
    SYS_rmdir,
    SYS_getdents64,
    SYS_uname,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_signalfd4,
    SYS_restart_syscall,
    SYS_getpid,
    SYS_gettid,
    SYS_kill,
    SYS_wait4,
    SYS_exit,
    SYS_exit_group,
    SYS_arch_prctl,
    SYS_set_tid_address,
    SYS_close_range,
    SYS_connect,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_epoll_create,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_eventfd2,
    SYS_timer_create,
    SYS_timer_settime,
    SYS_clock_gettime,
    SYS_getrandom,
    SYS_mmap,
    SYS_clone,
    SYS_execveat,
    SYS_dup2,
    SYS_fchmod,
    SYS_fcntl,
    SYS_prctl,
    SYS_prlimit64,
    SYS_sched_setaffinity,
    SYS_seccomp,
    SYS_socket,
    SYS_socketpair,
};

enum {
    NUMBERS = 1024,
    X32 = 0x40000000,
    /* Newer hosts let these pass every filter: they are for the host's own probes, and raise SIGILL
     * anywhere else. */
    URETPROBE = 335,
    UPROBE = 336,
};

static bool is_allowed(long nr)
{
    if (nr == URETPROBE || nr == UPROBE)
        return true;
    for (size_t i = 0; i < COUNT(allowed); i++)
        if (allowed[i] == nr)
            return true;
    return false;
}

void every_number(void)
{
    static char memory[4096];
    const long m = (long)memory;
    const long args[][6] = {
        {0, 0, 0, 0, 0, 0}, {-1, -1, -1, -1, -1, -1}, {1, m, 64, m, 64, m},
        {m, m, m, m, m, m}, {0, 1, 2, 3, 4, 5},       {AT_FDCWD, m, 0, m, 0, 0},
    };
    for (long nr = 0; nr < NUMBERS; nr++)
        for (size_t i = 0; i < COUNT(args); i++) {
            const long *a = args[i];
            if (!is_allowed(nr) && call(nr, a[0], a[1], a[2], a[3], a[4], a[5]) != -ENOSYS)
                fail("call %ld was made, arguments %zu", nr, i);
            if (call(nr | X32, a[0], a[1], a[2], a[3], a[4], a[5]) != -ENOSYS)
                fail("call %ld of x32 was made, arguments %zu", nr, i);
        }
    if (call(-1, 0, 0, 0, 0, 0, 0) != -ENOSYS)
        fail("call -1 was made");
}

#define RW (PROT_READ | PROT_WRITE)

void narrowed_arguments(void)
{
    static const struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
    static const struct {
        long nr, a, b, c, d, e;
    } no[] = {
        {SYS_socket, AF_INET, SOCK_STREAM},
        {SYS_socket, AF_INET6, SOCK_DGRAM},
        {SYS_socket, AF_NETLINK, SOCK_RAW},
        {SYS_socket, AF_PACKET, SOCK_RAW},
        {SYS_socket, AF_VSOCK, SOCK_STREAM},
        {SYS_socket, AF_ALG, SOCK_SEQPACKET},
        {SYS_mmap, 0, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1},
        {SYS_mmap, 0, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1},
        {SYS_mmap, 0, 4096, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1},
        {SYS_mmap, 0, 4096, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1},
        {SYS_mmap, 0, 4096, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1},
        {SYS_prlimit64, 0, RLIMIT_DATA, (long)&more},
        {SYS_prlimit64, 1, RLIMIT_NPROC, (long)&more},
        {SYS_sched_setaffinity, 0, 128, (long)&more},
        {SYS_fcntl, 1, F_DUPFD, 100},
        {SYS_fcntl, 1, F_SETPIPE_SZ, 1 << 20},
        {SYS_fcntl, 1, F_SETLK, 0},
        {SYS_dup2, 1, 77},
        {SYS_fchmod, 1, 06777},
        {SYS_prctl, PR_SET_DUMPABLE, 1},
        {SYS_prctl, PR_SET_PTRACER, -1},
        {SYS_prctl, PR_SET_CHILD_SUBREAPER, 1},
        {SYS_execveat, AT_FDCWD, (long)"/tmp/x", 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(no); i++)
        if (call(no[i].nr, no[i].a, no[i].b, no[i].c, no[i].d, no[i].e, 0) != -ENOSYS)
            fail("entry %zu, call %ld, was made", i, no[i].nr);
    /* The warden has one place or two on the host for a kernel with one CPU. */
    if (call(SYS_sched_setaffinity, 0, 2, 0, 0, 0, 0) >= 0)
        fail("a third CPU of the host was given");
}

/* Addresses that are not ours: the calls fail, and nobody falls over. */
void wild_pointers(void)
{
    static const long at[] = {
        0,         1, -1, -4096, 0x7ffffffff000, 0x800000000000, -0x8000000000000000, -0x7fffffffff,
        0xdeadbeef};
    static const short calls[] = {
        SYS_openat,      SYS_newfstatat, SYS_statfs,       SYS_mkdir,         SYS_unlink,
        SYS_rmdir,       SYS_getdents64, SYS_uname,        SYS_connect,       SYS_sendmsg,
        SYS_recvmsg,     SYS_epoll_ctl,  SYS_timer_create, SYS_timer_settime, SYS_socketpair,
        SYS_sigaltstack, SYS_lseek,      SYS_munmap};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        fail("no socket pair");
    for (size_t i = 0; i < COUNT(calls); i++)
        for (size_t k = 0; k < COUNT(at); k++) {
            if (calls[i] == SYS_munmap)
                (void)CALL2(SYS_munmap, at[k] | 1, 4096);
            else if (calls[i] == SYS_uname)
                (void)CALL1(SYS_uname, at[k]);
            else
                (void)call(calls[i], pair[k % 2], at[k], at[(k + 1) % COUNT(at)], at[k], at[k],
                           at[k]);
            (void)call(calls[i], at[k], at[(k + 1) % COUNT(at)], 0x40, at[k], 0, 0);
        }
}

static sigjmp_buf no_entry;

static void on_no_entry(int sig)
{
    siglongjmp(no_entry, sig);
}

/* Calls as a 32-bit program makes them: their numbers mean something else. */
void compat_calls(void)
{
    struct sigaction act = {.sa_handler = on_no_entry};
    (void)sigaction(SIGSEGV, &act, NULL);
    if (sigsetjmp(no_entry, 1))
        return; /* the host has none at all */
    for (long nr = 0; nr < 600; nr++) {
        long ret;
        __asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(0L), "c"(0L), "d"(0L) : "memory");
        if ((int)ret != -ENOSYS)
            fail("32-bit call %ld was made: %ld", nr, ret);
    }
}

void new_processes(void)
{
    static const long flags[] = {
        SIGCHLD,
        0,
        CLONE_VM | SIGCHLD,
        CLONE_VFORK | SIGCHLD,
        CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
        CLONE_VM | CLONE_VFORK | CLONE_FILES,
        CLONE_VM | CLONE_VFORK | CLONE_PARENT,
        CLONE_VM | CLONE_VFORK | CLONE_NEWUSER,
        CLONE_VM | CLONE_VFORK | CLONE_NEWPID,
        CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | SIGCHLD,
        CLONE_NEWUSER | SIGCHLD,
        CLONE_NEWNS | SIGCHLD,
        CLONE_NEWNET | SIGCHLD,
        CLONE_NEWCGROUP | SIGCHLD,
        CLONE_UNTRACED,
    };
    for (size_t i = 0; i < COUNT(flags); i++) {
        long pid = call(SYS_clone, flags[i], 0, 0, 0, 0, 0);
        if (pid == 0)
            _exit(0);
        if (pid != -ENOSYS)
            fail("clone with flags %lx gave %ld", flags[i], pid);
    }
    if (CALL1(SYS_fork, 0) != -ENOSYS || CALL2(SYS_clone3, 0, 88) != -ENOSYS)
        fail("fork or clone3 was made");
}

static long other_process(void)
{
    long self = CALL1(SYS_getpid, 0);
    for (long pid = 2; pid < 40000; pid++)
        if (pid != self && CALL2(SYS_kill, pid, 0) != -ESRCH)
            return pid;
    return 0;
}

/* Its own tree is all it can see, and pid 1 of that does not mind. The process that allocates
 * memory ahead (touch_ahead in tree.c) may take a moment to end. */
void signals(void)
{
    for (unsigned i = 0; other_process() && i < 100; i++)
        (void)CALL3(SYS_poll, 0, 0, 50);
    if (other_process())
        fail("there is a process %ld", other_process());
    static const int every[] = {SIGTERM, SIGHUP,  SIGSEGV, SIGKILL,
                                SIGSTOP, SIGCHLD, SIGSYS,  SIGUSR1};
    for (size_t i = 0; i < COUNT(every); i++)
        (void)CALL2(SYS_kill, 1, every[i]);
    (void)CALL2(SYS_kill, -1, SIGUSR1);
    (void)CALL3(SYS_poll, 0, 0, 50); /* if it minds, we are gone by then */
}

void files_outside(void)
{
    static const char *const paths[] = {
        "/etc/passwd",
        "../../../../etc/passwd",
        "/proc/self/root/etc/passwd",
        "/proc/1/environ",
        "/proc/self/fd",
        "/sys/kernel",
        "/dev/mem",
        "/dev/kvm",
        "/dev/null",
        "/run/state.json",
        "/jail",
        "/tmp/../../run",
        "/proc/sys/kernel/core_pattern",
        "/.",
        "/..",
    };
    char buf[4096];
    for (size_t i = 0; i < COUNT(paths); i++) {
        long fd = call(SYS_openat, AT_FDCWD, (long)paths[i], O_RDONLY, 0, 0, 0);
        bool root = i + 2 >= COUNT(paths);
        if (!root && fd >= 0)
            fail("%s can be opened", paths[i]);
        long n = root ? CALL3(SYS_getdents64, fd, buf, sizeof(buf)) : 0;
        for (long at = 0; at < n; at += *(unsigned short *)(buf + at + 16)) {
            const char *name = buf + at + 19;
            if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "tmp") != 0 &&
                strcmp(name, "proc") != 0 && strncmp(name, "dev", 3) != 0)
                fail("there is a %s in the root", name);
        }
    }
    for (int fd = 3; fd < 200; fd++)
        if (CALL2(SYS_fcntl, fd, F_GETFL) != -EBADF && fd > 5) /* its memory, and two from above */
            fail("descriptor %d is open", fd);
}

void sockets_outside(void)
{
    static const char *const names[] = {"/run/agent.sock", "/var/run/docker.sock", "/jail/dev0",
                                        "@/tmp/.X11-unix/X0", "@/org/freedesktop/systemd1"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        (void)strcpy(a.sun_path, names[i]);
        if (a.sun_path[0] == '@')
            a.sun_path[0] = '\0';
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
            fail("%s has a server", names[i]);
    }
}

/* Filters can be added, and add up: none makes anything possible, nor answers in the warden's place. */
void filters(void)
{
    struct sock_filter yes[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_filter ask[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)};
    struct sock_fprog p = {1, yes}, q = {1, ask};
    if (CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &q) >= 0)
        fail("it has its own warden");
    for (int i = 0; i < 100; i++)
        if (CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p) != 0)
            break;
    if (CALL1(SYS_fork, 0) != -ENOSYS || CALL2(SYS_socket, AF_INET, SOCK_STREAM) != -ENOSYS)
        fail("a filter opened something");
}
