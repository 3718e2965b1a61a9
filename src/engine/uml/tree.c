#include "engine/uml/tree.h"

#include "engine/uml/warden.h"
#include "jail/jail.h"
#include "jail/reduced.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/kernel.h"
#include "util/process.h"
#include "util/sock.h"

#include <assert.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    /* Besides the guest's memory the tmpfs holds a pid file and sockets, each of which may take a
     * huge page. */
    TMPFS_SLACK = 16 * 1024 * 1024,
    /* The kernel's own variables, heap and stack. */
    DATA_MAX = 8 * 1024 * 1024,
    STACK_MAX = 1024 * 1024,
    /* Mappings take page tables, which no other limit counts. The kernel maps guest memory once; a
     * guest process maps what it uses, at a few addresses at most. */
    ADDRESSES_MEMORIES = 4,
    /* A guest process takes a descriptor in the kernel and a process on the host; if either runs
     * out, fork() fails in the guest, which carries on. As many as its memory has room for: even a
     * forked process that does nothing takes 100 KiB. */
    NPROC_MIN = 128,
    NPROC_MAX = 16384,
    NPROC_BYTES = 512 * 1024,
    OTHER_FILES = 128,
    SIGNALS_MAX = 1024, /* also used for timers */
    PHDRS_MAX = 32,
    KERNEL_FD = 3, /* the number of its file's descriptor */
    NET_STACK = 16 * 1024,
    HUGE_PAGE = 2 * 1024 * 1024,
    /* Huge pages that a boot uses behind the kernel's image, besides the first one of its page
     * structures (kernel/README.md). */
    BOOT_PAGES = 4,
    PAGE = 4096,
    PAGE_STRUCTURE = 64,
    /* The largest random distance between a program's end and its heap. */
    HEAP_GAP_MAX = 1024 * 1024 * 1024,
};

static const uint64_t addresses_min = 16ULL << 30;

/* How the kernel's process starts. */
struct start {
    pid_t monitor;
    char *const *argv;
    bool traced;
    bool floating;     /* the host insists on randomizing its heap's address */
    uint64_t heap;     /* where its program ends */
    uint64_t image;    /* how long that is */
    int memory_fd;     /* the guest's; -1: the kernel creates a file for it */
    struct desk *desk; /* in a reduced jail */
    unsigned cpus;
    int place[UML_CPUS_MAX]; /* CPUs of the host, one for each of the kernel's (see tree_pin), */
    size_t n_places;         /* ... or none */
};

/* What the reaper sends to the monitor once its jail is set up: an error, or the listening
 * sockets. */
struct report {
    int code;
    char text[256];
};

void uml_device_path(size_t i, char out[16])
{
    (void)snprintf(out, 16, "/dev%zu", i);
}

/* --- in the child --------------------------------------------------------------------------- */

/* The kernel reads the host CPU's features from /proc/cpuinfo; it gets a copy, not procfs. */
static int fill_root(const struct engine_params *p, struct err *e)
{
    if (mkdir("tmp", 0700) < 0 || mkdir("proc", 0700) < 0)
        return err_sys(e, errno, "cannot fill the kernel's root");
    AUTO_CLOSE int proc = open("proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = file_replace_at(proc, "cpuinfo", p->cpuinfo, strlen(p->cpuinfo), 0400, false);
    return r < 0 ? err_sys(e, -r, "cannot fill the kernel's root") : 0;
}

/* Whether RLIMIT_NPROC counts processes in our user namespace, rather than all that our user
 * runs. */
static bool counts_by_namespace(void)
{
    return kernel_is_at_least(5, 14, 0);
}

/* The kernel maps guest memory at a fixed address, behind its heap. By itself, it would disable
 * randomization and re-execute itself. Containers may not let us (their seccomp profiles allow a
 * few values of personality(), but not this one). */
static int settle_layout(const struct engine_params *p, struct start *s, struct err *e)
{
    Elf64_Ehdr h;
    Elf64_Phdr ph[PHDRS_MAX] = {0};
    uint64_t first = UINT64_MAX;
    s->floating = personality(ADDR_NO_RANDOMIZE) < 0;
    int r = pread_all(p->kernel_fd, &h, sizeof(h), 0);
    if (r == 0 && (h.e_phentsize != sizeof(ph[0]) || h.e_phnum > PHDRS_MAX))
        r = -ENOEXEC;
    if (r == 0)
        r = pread_all(p->kernel_fd, ph, h.e_phnum * sizeof(ph[0]), h.e_phoff);
    for (size_t i = 0; r == 0 && i < h.e_phnum; i++)
        if (ph[i].p_type == PT_LOAD) {
            first = MIN(first, ph[i].p_vaddr);
            s->heap = MAX(s->heap, (ph[i].p_vaddr + ph[i].p_memsz + PAGE - 1) & ~(PAGE - 1ULL));
        }
    s->image = s->heap - MIN(first, s->heap);
    return r < 0 ? err_sys(e, -r, "cannot read the guest's kernel") : 0;
}

static uint64_t processes_of(const struct engine_params *p)
{
    return MIN(NPROC_MIN + p->memory_bytes / NPROC_BYTES, NPROC_MAX);
}

static int tree_set_limits(const struct engine_params *p, bool floating, struct err *e)
{
    uint64_t processes = NPROC_MAX;
    if (p->reduced ? p->own_user : counts_by_namespace())
        processes = processes_of(p);
    processes += p->n_cpus - 1;
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},
        {RLIMIT_DATA, DATA_MAX},
        {RLIMIT_STACK, STACK_MAX},
        {RLIMIT_AS, addresses_min + ADDRESSES_MEMORIES * p->memory_bytes},
        /* Without a warden that answers where the heap is, the file has a hole of that size. */
        {RLIMIT_FSIZE, p->memory_bytes + TMPFS_SLACK + (floating ? HEAP_GAP_MAX : 0)},
        {RLIMIT_NOFILE, processes + OTHER_FILES},
        {RLIMIT_NPROC, processes},
        {RLIMIT_SIGPENDING, SIGNALS_MAX},
    };
    return jail_set_limits(limits, ARRAY_LEN(limits), e);
}

/* Pins the tree to the host CPUs that its own CPUs map to: the chosen one, and those after it. A
 * kernel with a single CPU may have a second place, to which the warden moves a process on
 * request. */
static void tree_pin(const struct engine_params *p, struct start *s)
{
    cpu_set_t all, set;
    if (p->cpu < 0 || sched_getaffinity(0, sizeof(all), &all) < 0)
        return;
    size_t cpu = (size_t)p->cpu % CPU_SETSIZE;
    CPU_SET(cpu, &all);
    CPU_ZERO(&set);
    size_t n = s->cpus == 1 && p->spread && !s->traced && CPU_COUNT(&all) > 1 ? 2 : s->cpus;
    for (; s->n_places < n; cpu = (cpu + 1) % CPU_SETSIZE) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        if (s->n_places < s->cpus)
            CPU_SET(cpu, &set);
        s->place[s->n_places++] = (int)cpu;
    }
    /* If one of them has gone offline, only speed is lost. */
    (void)sched_setaffinity(0, sizeof(set), &set);
}

/* --- the guest's memory --- */

/* The CPUs for what may run in parallel with the kernel; false if it would only take turns with
 * it. */
static bool other_cpus(const struct engine_params *p, cpu_set_t *set)
{
    if (sched_getaffinity(0, sizeof(*set), set) < 0 || CPU_COUNT(set) < 2)
        return false;
    if (p->cpu >= 0)
        CPU_CLR((size_t)p->cpu % CPU_SETSIZE, set);
    return true;
}

static void touch(const struct start *s, uint64_t at)
{
    void *map = mmap(NULL, HUGE_PAGE, PROT_READ, MAP_SHARED, s->memory_fd,
                     (off_t)(at & ~(HUGE_PAGE - 1ULL)));
    if (map != MAP_FAILED)
        (void)madvise(map, HUGE_PAGE, MADV_POPULATE_READ); /* no signal if memory is short */
}

/* A boot would have to wait for the host to find and clear each huge page that it uses, a hundred
 * times as long if a hypervisor has reclaimed free memory. So a process on another CPU has them
 * allocated meanwhile: by reading, since the kernel may have come first; and from the last one
 * down, so that the two meet halfway if that takes long. */
static void touch_ahead(const struct engine_params *p, const struct start *s)
{
    cpu_set_t set;
    uint64_t begin = s->image + HUGE_PAGE - 1;
    uint64_t structures = p->memory_bytes / PAGE * PAGE_STRUCTURE;
    if (!other_cpus(p, &set) ||
        begin + BOOT_PAGES * (uint64_t)HUGE_PAGE + structures > p->memory_bytes || fork() != 0)
        return;
    (void)sched_setaffinity(0, sizeof(set), &set);
    (void)process_close_others(0, &s->memory_fd, 1);
    for (unsigned i = BOOT_PAGES; i-- > 0;)
        touch(s, begin + i * (uint64_t)HUGE_PAGE);
    touch(s, p->memory_bytes - structures);
    _exit(0); /* the warden reaps it */
}

static int make_memory(const struct engine_params *p, struct start *s, struct err *e)
{
    /* Longer than the memory: the last page of a file is not a huge one. */
    AUTO_CLOSE int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0700);
    /* Where the kernel has to leave a gap for its heap, its memory begins behind that. */
    uint64_t gap = s->floating ? HEAP_GAP_MAX : 0;
    if (fd < 0 || ftruncate(fd, (off_t)(p->memory_bytes + gap + PAGE)) < 0 ||
        (s->memory_fd = fcntl(fd, F_DUPFD_CLOEXEC, UML_MEMORY_FD + 1)) < 0)
        return err_sys(e, errno, "cannot create the guest's memory");
    if (!s->floating)
        touch_ahead(p, s);
    return 0;
}

/* --- the jail --- */

/* Creating a network namespace takes the host as long as the rest of the jail. So it is created at
 * the same time, by a process that shares our memory and files; `ns` is a socket in that namespace,
 * through which it can be entered. */
struct net_maker {
    pid_t pid;
    int ns; /* or -errno */
    _Alignas(16) char stack[NET_STACK];
};

/* Does not touch errno, which the process that sets up the rest of the jail is using. */
static long raw_call(long number, long a, long b, long c)
{
    long r;
    asm volatile("syscall"
                 : "=a"(r)
                 : "0"(number), "D"(a), "S"(b), "d"(c)
                 : "rcx", "r11", "memory");
    return r;
}

static int make_net(void *arg)
{
    struct net_maker *m = arg;
    long r = raw_call(SYS_unshare, CLONE_NEWNET, 0, 0);
    long sock = r < 0 ? r : raw_call(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    m->ns = (int)(sock < 0 ? sock : raw_call(SYS_ioctl, sock, SIOCGSKNS, 0));
    if (sock >= 0)
        (void)raw_call(SYS_close, sock, 0, 0);
    return 0;
}

static void start_net(struct net_maker *m)
{
    m->ns = -ECHILD;
    m->pid = clone(make_net, m->stack + sizeof(m->stack), CLONE_VM | CLONE_FILES | SIGCHLD, m);
    if (m->pid < 0)
        m->ns = -errno;
}

/* A container around us may refuse setns(), but not unshare(). */
static int enter_net(struct net_maker *m, struct err *e)
{
    if (m->pid > 0)
        (void)process_wait(m->pid);
    bool entered = m->ns >= 0 && setns(m->ns, CLONE_NEWNET) == 0;
    close_fd(&m->ns);
    if (!entered && unshare(CLONE_NEWNET) < 0)
        return err_sys(e, errno, "cannot make the kernel's network namespace");
    return 0;
}

static int enter_jail(const struct engine_params *p, struct start *s, int *listen_fd, struct err *e)
{
    static struct net_maker net;
    char options[96];
    start_net(&net);
    /* Huge pages: otherwise, first touches of guest memory take half of the boot time. */
    (void)snprintf(options, sizeof(options),
                   "size=%" PRIu64 ",nr_inodes=128,mode=0700,huge=within_size",
                   p->memory_bytes + TMPFS_SLACK);
    int r = jail_mount_tmpfs(p->jail_dir, options, e);
    if (r == -EINVAL) { /* not supported by this host's tmpfs */
        *strrchr(options, ',') = '\0';
        r = jail_mount_tmpfs(p->jail_dir, options, e);
    }
    if (r == 0)
        r = make_memory(p, s, e);
    if (r == 0)
        r = fill_root(p, e);
    if (r == 0)
        r = jail_pivot(e);
    for (size_t i = 0; r == 0 && i < p->n_devices; i++) {
        char path[16];
        uml_device_path(i, path);
        listen_fd[i] = listen_at(path, 1);
        if (listen_fd[i] < 0)
            r = err_sys(e, -listen_fd[i], "cannot create the sockets of the kernel's devices");
    }
    if (r == 0)
        r = enter_net(&net, e);
    if (r == 0)
        r = tree_set_limits(p, s->floating, e);
    return r == 0 ? jail_drop_caps(e) : r;
}

/* Without namespaces (jail/reduced.h). */
static int enter_reduced(const struct engine_params *p, struct start *s, int *listen_fd,
                         struct err *e)
{
    if (s->traced)
        return err_set(e, ENOTSUP, "the uml-ptrace engine cannot run in a reduced jail");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 || chdir(p->jail_dir) < 0)
        return err_sys(e, errno, "cannot set up the kernel's jail");
    int r = desk_open(&s->desk, p, processes_of(p), listen_fd, e);
    return r < 0 ? r : tree_set_limits(p, false, e);
}

static void send_report(int sock, const struct report *rep, const int *fds, size_t n)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * ENGINE_DEVICES_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)rep, .iov_len = sizeof(*rep)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        m.msg_control = control.buf;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = &control.align;
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    (void)sendmsg(sock, &m, MSG_NOSIGNAL);
}

/* Installs the kernel's filter, and passes the descriptor on which it asks to the warden. If that
 * is impossible, because we are already supervised, memory is only limited per process (`msb
 * doctor` reports this), and a reduced jail does not work. */
static int enter_filter(enum seccomp_profile profile, int warden)
{
    int fd = seccomp_enter_supervised(profile);
    if (fd == -EBUSY && profile != SECCOMP_UML_REDUCED)
        return seccomp_enter(profile);
    int r = fd < 0 ? fd : sock_send_fd(warden, fd);
    close_fd(&fd);
    return r;
}

/* Does what namespaces do elsewhere: it ends with the reaper, and sees no files. */
static int enter_alone(int kernel_fd)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -errno;
    int r = reduced_close(kernel_fd, NULL);
    return r < 0 ? r : jail_drop_caps(NULL);
}

/* Becomes the kernel. Only stdio, the kernel's own file and the guest's memory are still open. */
static void __attribute__((noreturn)) run_kernel(int kernel_fd, const struct start *s, int warden)
{
    /* Never an empty environment: the kernel would map its stub over its own stack. */
    static const char *const env[] = {"TMPDIR=/tmp", NULL};
    /* A separate process group: a kernel that panics sends SIGTERM to its group, and the pid
     * namespace would not protect a monitor in the same group. */
    if (setsid() < 0)
        _exit(126);
    if (s->desk && enter_alone(kernel_fd) < 0)
        _exit(126);
    enum seccomp_profile filter = SECCOMP_UML;
    if (s->desk)
        filter = SECCOMP_UML_REDUCED;
    else if (s->traced)
        filter = SECCOMP_UML_PTRACE;
    else if (s->cpus > 1)
        filter = s->floating ? SECCOMP_UML_SMP_FLOATING : SECCOMP_UML_SMP;
    else if (s->floating)
        filter = SECCOMP_UML_FLOATING;
    if (enter_filter(filter, warden) == 0)
        (void)syscall(SYS_execveat, kernel_fd, "", s->argv, env, AT_EMPTY_PATH);
    _exit(126);
}

/* Keeps 0, 1, 2, the kernel's file and its memory; nothing else crosses. */
static int settle_descriptors(const struct engine_params *p, int console, const struct start *s)
{
    int keep[DESK_FDS_MAX] = {0};
    if (dup2(p->null_fd, 0) < 0 || dup2(console, 1) < 0 || dup2(console, 2) < 0)
        return -errno;
    if (p->kernel_fd != KERNEL_FD && dup3(p->kernel_fd, KERNEL_FD, O_CLOEXEC) < 0)
        return -errno;
    if (s->memory_fd < 0)
        return process_close_others(KERNEL_FD + 1, keep, s->desk ? desk_fds(s->desk, keep) : 0);
    if (dup2(s->memory_fd, UML_MEMORY_FD) < 0)
        return -errno;
    return process_close_others(UML_MEMORY_FD + 1, NULL, 0);
}

/* The warden keeps its listener, as descriptor 3, and what it hands out. */
static int settle_warden(int listener, const struct desk *desk)
{
    int keep[DESK_FDS_MAX] = {0};
    if (listener < 0)
        return syscall(SYS_close_range, 0U, ~0U, 0) < 0 ? -errno : 0;
    if (dup3(listener, 3, O_CLOEXEC) != 3 || syscall(SYS_close_range, 0U, 2U, 0) < 0)
        return -errno;
    return process_close_others(4, keep, desk ? desk_fds(desk, keep) : 0);
}

static void __attribute__((noreturn)) run_tree(const struct start *s)
{
    int here, there;
    if (packet_pair(&here, &there, NULL) < 0)
        _exit(126);
    pid_t kernel = fork();
    if (kernel == 0)
        run_kernel(KERNEL_FD, s, there);
    if (kernel < 0)
        _exit(126);
    (void)close(there);
    struct pollfd ready = {.fd = here, .events = POLLIN};
    while (poll(&ready, 1, -1) < 0 && errno == EINTR)
        ;
    int listener = sock_recv_fd(here); /* none if the kernel's filter does not ask */
    if (settle_warden(listener, s->desk) < 0)
        _exit(126);
    if (s->desk && (listener < 0 || desk_watch(s->desk, kernel) < 0 || jail_drop_caps(NULL) < 0))
        _exit(126); /* the kernel ends with us */
    struct warden_params w = {.kernel = kernel,
                              .listener = listener < 0 ? -1 : 3,
                              .traced = s->traced,
                              .heap = s->heap,
                              .desk = s->desk,
                              .threads = s->cpus - 1,
                              .n_cpus = s->n_places};
    memcpy(w.cpu, s->place, sizeof(w.cpu));
    warden_main(&w);
}

static void __attribute__((noreturn))
child_main(const struct engine_params *p, struct start *start, int sock, int console)
{
    struct err e = {0};
    int fds[ENGINE_DEVICES_MAX];
    struct report rep = {0};
    /* SIGTERM: the warden first ends the tree, where no namespace does that. */
    (void)prctl(PR_SET_PDEATHSIG, p->reduced ? SIGTERM : SIGKILL, 0, 0, 0);
    if (p->reduced && getppid() != start->monitor) /* it is too late for that */
        _exit(126);
    /* The tree can send us any signal, and the monitor's handlers are not for us. The kernel
     * expects errors, not signals, when a device is gone or a file is full. */
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    int r = settle_layout(p, start, &e);
    if (r == 0)
        r = p->reduced ? enter_reduced(p, start, fds, &e) : enter_jail(p, start, fds, &e);
    if (r < 0) {
        rep.code = -r;
        (void)snprintf(rep.text, sizeof(rep.text), "%.255s", e.msg);
        send_report(sock, &rep, NULL, 0);
        _exit(126);
    }
    send_report(sock, &rep, fds, p->n_devices);
    tree_pin(p, start);
    if (settle_descriptors(p, console, start) < 0)
        _exit(126);
    run_tree(start);
}

/* --- in the monitor ------------------------------------------------------------------------- */

static int receive_report(int sock, int *fds, size_t n, struct err *e)
{
    struct report rep = {0};
    union {
        char buf[CMSG_SPACE(sizeof(int) * ENGINE_DEVICES_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = &rep, .iov_len = sizeof(rep)};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.buf,
                       .msg_controllen = sizeof(control.buf)};
    ssize_t k = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    if (k != (ssize_t)sizeof(rep))
        return err_set(e, ECHILD, "cannot set up the kernel's jail: its process died");
    if (rep.code)
        return err_set(e, rep.code, "%.255s", rep.text);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int) * n))
        return err_set(e, EPROTO, "cannot set up the kernel's jail: sockets are missing");
    memcpy(fds, CMSG_DATA(c), sizeof(int) * n);
    return 0;
}

int uml_tree_start(struct uml_tree *t, const struct engine_params *p, char *const argv[],
                   bool traced, struct err *e)
{
    AUTO_CLOSE int sock_here = -1, sock_there = -1;
    int console[2];
    assert(p->n_devices <= ENGINE_DEVICES_MAX && p->n_cpus >= 1 && p->n_cpus <= UML_CPUS_MAX);
    int r = packet_pair(&sock_here, &sock_there, e);
    if (r < 0)
        return r;
    if (pipe2(console, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot create a pipe");
    AUTO_CLOSE int console_here = console[0], console_there = console[1];
    if (fcntl(console_here, F_SETFL, O_NONBLOCK) < 0)
        return err_sys(e, errno, "cannot set up the console");

    /* Raw clone(), since fork() cannot create namespaces. The process has one thread at this point,
     * so the child may call anything. */
    struct start start = {
        .monitor = getpid(), .argv = argv, .traced = traced, .memory_fd = -1, .cpus = p->n_cpus};
    long flags = p->reduced ? 0 : CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;
    pid_t pid = (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        return err_sys(e, errno, "cannot start the kernel's process tree");
    if (pid == 0)
        child_main(p, &start, sock_there, console_there);
    close_fd(&sock_there);
    r = receive_report(sock_here, t->listen_fd, p->n_devices, e);
    if (r < 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        return r;
    }
    t->reaper = pid;
    t->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (t->pidfd < 0)
        return err_sys(e, errno, "cannot watch the kernel");
    t->console_fd = steal_fd(&console_here);
    return 0;
}

/* System calls of a user-mode kernel and its stubs: found with strace over boots, workloads and
 * power-offs, then confirmed one by one under this filter (kernel/README.md).
 *
 * #syscalls:uml read write openat close lseek munmap mprotect brk poll futex
 * newfstatat statfs mkdir unlink rmdir getdents64 uname
 * rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack signalfd4 restart_syscall
 * getpid gettid kill wait4 exit exit_group arch_prctl set_tid_address
 * close_range connect sendmsg recvmsg epoll_create epoll_ctl epoll_wait eventfd2
 * timer_create timer_settime clock_gettime getrandom
 *
 * clone, dup2, execveat, fchmod, fcntl, mmap, prctl, prlimit64, seccomp, socket and socketpair are
 * allowed with certain arguments (jail/seccomp.c), as is sched_setaffinity; tgkill where there are
 * several CPUs, and sched_yield on hosts where it does no harm. No memfd_create: the kernel then
 * keeps its stubs' program in its tmpfs, the size of which is limited.
 *
 * Only where guest processes are traced instead of filtered:
 *
 * #syscalls:uml_ptrace ptrace getppid
 */
