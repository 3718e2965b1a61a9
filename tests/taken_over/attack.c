#include "attack.h"

#include "../rawcall.h"

#include "jail/seccomp.h"
#include "util/cleanup.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include "seccomp_lists.h"

enum {
    REFUSED = -9999, /* by the filter */
    NUMBERS = 1024,
    X32 = 0x40000000,
    REPORT_MAX = 8192,
    URETPROBE = 335, /* these pass every filter on newer hosts, and raise SIGILL */
    UPROBE = 336,
};

struct report {
    char text[REPORT_MAX];
    size_t n;
};

static void note(struct report *r, bool can, const char *name)
{
    r->n += (size_t)snprintf(r->text + r->n, sizeof(r->text) - r->n, "%s %s\n",
                             can ? "can" : "cannot", name);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* The monitor would end itself; an attacker does not let it. */
static void on_refused(int sig, siginfo_t *si, void *context)
{
    ucontext_t *uc = context;
    uc->uc_mcontext.gregs[REG_RAX] = REFUSED;
}

static long call(long nr, long a, long b, long c, long d, long e)
{
    return rawcall(nr, a, b, c, d, e, 0);
}

static bool listed(const int *list, size_t n, long nr)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == nr)
            return true;
    return nr == URETPROBE || nr == UPROBE;
}

/* Every number that no line of the product's own code has asked for. */
static void try_every_number(struct report *r, const int *list, size_t n, const int *more,
                             size_t n_more)
{
    for (long nr = 0; nr < NUMBERS; nr++) {
        bool known = listed(list, n, nr) || listed(more, n_more, nr);
        if (!known &&
            (call(nr, 0, 0, 0, 0, 0) != REFUSED || call(nr, -1, -1, -1, -1, -1) != REFUSED)) {
            char name[64];
            (void)snprintf(name, sizeof(name), "make call %ld", nr);
            note(r, true, name);
        }
        if (call(nr | X32, 0, 0, 0, 0, 0) != REFUSED)
            note(r, true, "make calls of x32");
    }
    note(r, false, "make other calls");
}

#define RW (PROT_READ | PROT_WRITE)

struct attempt {
    const char *name;
    long nr, a, b, c, d, e;
};

static void try_calls(struct report *r, const struct attempt *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        note(r, call(list[i].nr, list[i].a, list[i].b, list[i].c, list[i].d, list[i].e) >= 0,
             list[i].name);
}

/* A monitor is in its root, where run/ is; in a reduced jail it is in run/. */
static int open_in_run(const char *name, int flags)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "run/%s", name);
    int fd = open(path, flags, 0600);
    return fd >= 0 ? fd : open(name, flags, 0600);
}

/* --- from the main thread --------------------------------------------------------------------- */

static void try_files(struct report *r)
{
    static const char *const outside[] = {
        "/etc/passwd",    "/proc/self/environ", "/proc/1/root", "/sys/kernel",    "/dev/null",
        "/run/../../etc", "/run/../spec.json",  "/../lock",     "/home",          "/root",
        "/tmp",           "/jail/../..//etc",   "/usr/bin",     "/run/spec.json",
    };
    bool any = false, up = false, create = false;
    for (size_t i = 0; i < ARRAY_LEN(outside); i++)
        any |= call(SYS_openat, AT_FDCWD, (long)outside[i], O_RDONLY, 0, 0) >= 0;
    note(r, any, "open files of the host");
    for (int fd = 0; fd < 2048; fd++) {
        up |= call(SYS_openat, fd, (long)"../spec.json", O_RDONLY, 0, 0) >= 0;
        up |= call(SYS_openat, fd, (long)"../../../secrets", O_RDONLY, 0, 0) >= 0;
        up |= call(SYS_openat, fd, (long)"../../etc/passwd", O_RDONLY, 0, 0) >= 0;
    }
    note(r, up, "climb out of a directory it has");
    note(r, call(SYS_openat, AT_FDCWD, (long)"/new", O_CREAT | O_WRONLY, 0600, 0) >= 0,
         "create files in its root");
    create = open_in_run("hoard", O_CREAT | O_WRONLY) >= 0;
    note(r, create, "create files in run/");
    (void)call(SYS_unlinkat, AT_FDCWD, (long)"run/hoard", 0, 0, 0);
    (void)call(SYS_unlinkat, AT_FDCWD, (long)"hoard", 0, 0, 0);
}

/* Which of its files it can write; nothing is changed. */
static void try_disks(struct report *r)
{
    unsigned writable = 0, readable = 0;
    for (int fd = 0; fd < 2048; fd++) {
        struct stat st;
        char byte;
        struct iovec iov = {&byte, 1};
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
            continue;
        if (call(SYS_preadv, fd, (long)&iov, 1, 0, 0) != 1)
            continue;
        readable++;
        if (st.st_size >= 1 << 20)
            writable += call(SYS_pwritev, fd, (long)&iov, 1, 0, 0) == 1;
    }
    note(r, readable > 0, "read its disks");
    note(r, writable == 1, "write one disk, its own");
    note(r, writable > 1, "write to an image");
}

static void try_memory(struct report *r)
{
    enum { STEP = 16 << 20, STEPS = 128 };
    long at[STEPS];
    size_t n = 0;
    while (n < STEPS && (at[n] = call(SYS_mmap, 0, STEP, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1)) > 0)
        n++;
    note(r, n * STEP > 512UL << 20, "have more than 512 MiB");
    while (n > 0)
        (void)munmap((void *)at[--n], STEP);
}

void attack_from_monitor(void)
{
    static struct report r;
    static const int narrowed[] = {SYS_mmap, SYS_fcntl, SYS_tgkill};
    static const struct attempt attempts[] = {
        {"run code it brought", SYS_mmap, 0, 4096, PROT_READ | PROT_EXEC,
         MAP_PRIVATE | MAP_ANONYMOUS, -1},
        {"make memory executable", SYS_mprotect, 0, 4096, PROT_READ | PROT_EXEC},
        {"have memory that no limit counts", SYS_mmap, 0, 4096, RW, MAP_SHARED | MAP_ANONYMOUS, -1},
        {"have memory that grows", SYS_mmap, 0, 4096, RW,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1},
        {"fork", SYS_clone, SIGCHLD},
        {"start a thread", SYS_clone, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND},
        {"execute a program", SYS_execve},
        {"make a socket", SYS_socket, AF_UNIX, SOCK_STREAM},
        {"make an Internet socket", SYS_socket, AF_INET, SOCK_STREAM},
        {"connect", SYS_connect, 0},
        {"trace", SYS_ptrace, 0},
        {"kill", SYS_kill, 2, SIGKILL},
        {"kill by thread", SYS_tgkill, 2, 2, SIGKILL},
        {"take or give up a record lock", SYS_fcntl, 0, F_SETLK},
        {"copy a descriptor", SYS_fcntl, 0, F_DUPFD, 0},
        {"pass a descriptor on", SYS_sendmsg, 0},
        {"mount", SYS_mount, 0},
        {"enter a namespace", SYS_setns, 0},
        {"change its user", SYS_setuid, 0},
        {"raise a limit", SYS_prlimit64, 0},
        {"use io_uring", SYS_io_uring_setup, 1},
    };
    struct sigaction act = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO}, old;
    (void)sigaction(SIGSYS, &act, &old); /* it may: the filter is what counts */
    try_calls(&r, attempts, ARRAY_LEN(attempts));
    try_every_number(&r, syscalls_monitor, ARRAY_LEN(syscalls_monitor), narrowed,
                     ARRAY_LEN(narrowed));
    try_files(&r);
    try_disks(&r);
    try_memory(&r);
    int fd = open_in_run("taken-main", O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, r.text, r.n);
    (void)close(fd);
}

/* --- from the network thread ------------------------------------------------------------------ */

static struct report net_report;
static atomic_bool net_done;
static int host_port;

void attack_prepare(void)
{
    char text[16] = "";
    int fd = open_in_run("taken-port", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
        host_port = atoi(text);
    (void)close(fd);
}

/* The caller's network is its own: that is a known gap. */
static bool reaches_host(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)host_port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = (int)call(SYS_socket, AF_INET, SOCK_STREAM, 0, 0, 0);
    bool yes = fd >= 0 && call(SYS_connect, fd, (long)&a, sizeof(a), 0, 0) == 0;
    (void)close(fd);
    return yes;
}

void attack_from_network(void)
{
    static const int narrowed[] = {SYS_mmap, SYS_fcntl, SYS_socket, SYS_socketpair};
    static const struct attempt attempts[] = {
        {"run code it brought", SYS_mmap, 0, 4096, PROT_READ | PROT_EXEC,
         MAP_PRIVATE | MAP_ANONYMOUS, -1},
        {"have memory that no limit counts", SYS_mmap, 0, 4096, RW, MAP_SHARED | MAP_ANONYMOUS, -1},
        {"fork", SYS_clone, SIGCHLD},
        {"make a Unix socket", SYS_socket, AF_UNIX, SOCK_STREAM},
        {"make a netlink socket", SYS_socket, AF_NETLINK, SOCK_RAW},
        {"make a packet socket", SYS_socket, AF_PACKET, SOCK_RAW},
        {"make an Internet socket", SYS_socket, AF_INET, SOCK_STREAM},
        {"open a file", SYS_openat, AT_FDCWD, (long)"/run/state.json", O_RDONLY},
        {"read a disk", SYS_preadv, 0},
        {"bind", SYS_bind, 0},
        {"listen", SYS_listen, 0, 1},
    };
    struct sigaction act = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGSYS, &act, NULL);
    try_calls(&net_report, attempts, ARRAY_LEN(attempts));
    try_every_number(&net_report, syscalls_net, ARRAY_LEN(syscalls_net), narrowed,
                     ARRAY_LEN(narrowed));
    note(&net_report, reaches_host(), "reach a service of the host");
    atomic_store(&net_done, true);
}

void attack_report_network(void)
{
    if (!atomic_exchange(&net_done, false))
        return;
    int fd = open_in_run("taken-net", O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, net_report.text, net_report.n);
    (void)close(fd);
}
