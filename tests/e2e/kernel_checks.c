/* What programs rely on of the CPU and of the kernel's system call path, which a user-mode kernel
 * has to imitate. Each check prints one line that does not depend on the machine.
 *
 *     kernel_checks NAME
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static char said[256];

/* --- seccomp ---------------------------------------------------------------------------------- */

static void on_sigsys(int sig, siginfo_t *si, void *p)
{
    greg_t *r = ((ucontext_t *)p)->uc_mcontext.gregs;
    snprintf(said, sizeof(said), "number %s, address %s",
             r[REG_RAX] == SYS_getppid ? "right" : "wrong",
             (greg_t)si->si_call_addr == r[REG_RIP] ? "right" : "wrong");
    r[REG_RAX] = 4711;
}

static void seccomp_trap(void)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {4, f};
    struct sigaction sa = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &sa, NULL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
        perror("seccomp");
    long r = syscall(SYS_getppid);
    printf("%s, result %ld\n", said, r);
}

/* --- instructions ----------------------------------------------------------------------------- */

extern char int80_here[];

static void on_segv(int sig, siginfo_t *si, void *p)
{
    greg_t *r = ((ucontext_t *)p)->uc_mcontext.gregs;
    snprintf(said, sizeof(said), "signal %d at %s", sig,
             r[REG_RIP] == (greg_t)int80_here ? "it" : "another");
    r[REG_RIP] += 2;
}

static void int80(void)
{
    struct sigaction sa = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &sa, NULL);
    __asm__ volatile("int80_here: int $0x80" ::"a"(20) : "memory"); /* getpid of i386 */
    printf("%s, and on\n", said);
}

static volatile int traps;

static void on_trap(int sig)
{
    traps++;
}

static void breakpoints(void)
{
    signal(SIGTRAP, on_trap);
    for (int i = 0; i < 3000; i++)
        __asm__ volatile("int3");
    printf("%d traps\n", traps);
}

/* --- ptrace ----------------------------------------------------------------------------------- */

static volatile long watched;

static void __attribute__((noinline)) touch(long i)
{
    __asm__ volatile("" ::: "memory");
    if (i == 3)
        watched = 42;
}

/* A child that stops, then touches and ends. */
__attribute__((target("avx2"))) static pid_t traced(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        __m256i v = _mm256_set1_epi64x(0x1122334455667788);
        __asm__ volatile(
            "vmovdqu %0, %%ymm7; mov $62, %%eax; mov %1, %%edi; mov $19, %%esi; syscall;"
            "vmovdqu %%ymm7, %0"
            : "+m"(v)
            : "r"(getpid())
            : "rax", "rdi", "rsi", "rcx", "r11", "memory", "xmm7");
        for (long i = 0; i < 6; i++)
            touch(i);
        _exit(((uint64_t *)&v)[3] == 0x1122334455667789 ? 9 : 8);
    }
    waitpid(pid, NULL, 0);
    return pid;
}

#define DR(n) offsetof(struct user, u_debugreg[n])

static void poke(pid_t pid, size_t at, unsigned long value)
{
    if (ptrace(PTRACE_POKEUSER, pid, at, value))
        printf("poke %s, ", strerrorname_np(errno));
}

static void go_on(pid_t pid, const char *what)
{
    int st;
    ptrace(PTRACE_CONT, pid, 0, 0);
    waitpid(pid, &st, 0);
    if (WIFEXITED(st)) {
        printf("%s: exit %d\n", what, WEXITSTATUS(st));
        return;
    }
    siginfo_t si;
    struct user_regs_struct r;
    ptrace(PTRACE_GETSIGINFO, pid, 0, &si);
    ptrace(PTRACE_GETREGS, pid, 0, &r);
    long value = ptrace(PTRACE_PEEKDATA, pid, &watched, 0);
    printf("%s: signal %d code %d dr6 %lx argument %lld value %ld\n", what, WSTOPSIG(st),
           si.si_code, ptrace(PTRACE_PEEKUSER, pid, DR(6), 0) & 0xf,
           r.rip == (long)touch ? r.rdi : -1, value);
    ptrace(PTRACE_POKEUSER, pid, DR(6), 0);
}

static void debug_registers(void)
{
    pid_t pid = traced();
    poke(pid, DR(0), (unsigned long)touch);
    poke(pid, DR(1), (unsigned long)&watched);
    poke(pid, DR(7), 0x1 | 0x4 | 0x9 << 20); /* execute; write, eight bytes */
    for (int i = 0; i < 4; i++)
        go_on(pid, "break");
    go_on(pid, "write");
    poke(pid, DR(7), 0);
    go_on(pid, "end");
}

static void xstate(void)
{
    static unsigned char area[65536];
    struct iovec v = {area, sizeof(area)};
    pid_t pid = traced();
    if (ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &v))
        perror("get");
    uint64_t *word = (uint64_t *)area;
    uint64_t *ymm7h = (uint64_t *)(area + 576 + 7 * 16);
    printf("features %s, ymm7 %s",
           (word[464 / 8] & 7) == 7 && !(word[464 / 8] >> 32) ? "right" : "wrong",
           ymm7h[1] == 0x1122334455667788 ? "right" : "wrong");
    ymm7h[1]++;
    printf(", set %ld", ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &v));
    word[512 / 8 + 1] = 1; /* no host loads a compacted area like this */
    printf(", bad %s\n",
           ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &v) ? strerrorname_np(errno) : "taken");
    go_on(pid, "end");
}

static void odd_registers(void)
{
    pid_t pid = traced();
    long r = ptrace(PTRACE_POKEUSER, pid, 4, 0);
    printf("poke %s", r ? strerrorname_np(errno) : "taken");
    errno = 0;
    ptrace(PTRACE_PEEKUSER, pid, 4, 0);
    printf(", peek %s", strerrorname_np(errno));
    struct user_regs_struct regs;
    ptrace(PTRACE_GETREGS, pid, 0, &regs);
    regs.eflags |= 1;
    ptrace(PTRACE_SETREGS, pid, 0, &regs);
    regs.eflags &= ~1;
    ptrace(PTRACE_SETREGS, pid, 0, &regs);
    ptrace(PTRACE_GETREGS, pid, 0, &regs);
    printf(", carry %lld\n", regs.eflags & 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* --- clocks ----------------------------------------------------------------------------------- */

static int64_t by_library(clockid_t c)
{
    struct timespec t;
    clock_gettime(c, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int64_t by_kernel(clockid_t c)
{
    struct timespec t;
    syscall(SYS_clock_gettime, c, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int ordered(clockid_t c)
{
    for (int i = 0; i < 3000; i++) {
        int64_t a = by_library(c), b = by_kernel(c), d = by_library(c);
        if (b < a || d < b)
            return 0;
    }
    return 1;
}

static void clocks(void)
{
    static const clockid_t all[] = {CLOCK_REALTIME,         CLOCK_MONOTONIC, CLOCK_REALTIME_COARSE,
                                    CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME,  CLOCK_MONOTONIC_RAW};
    for (size_t i = 0; i < 6; i++)
        printf("%d%s ", all[i], ordered(all[i]) ? "" : " goes back");
    int64_t coarse = by_library(CLOCK_REALTIME_COARSE), fine = by_library(CLOCK_REALTIME);
    printf("coarse %s", coarse <= fine && fine - coarse < 1000000000L ? "behind" : "wrong");
    struct timeval tv;
    gettimeofday(&tv, NULL);
    printf(", seconds %s", labs(tv.tv_sec - time(NULL)) <= 1 ? "right" : "wrong");
    struct timespec set = {.tv_sec = 2000000000};
    clock_settime(CLOCK_REALTIME, &set);
    printf(", set %s",
           by_library(CLOCK_REALTIME) / 1000000000L / 100 == 20000000 ? "seen" : "not seen");
    struct timex slower = {.modes = ADJ_FREQUENCY, .freq = -(500 << 16)}; /* 500 ppm */
    adjtimex(&slower);
    printf(", adjusted %s\n",
           ordered(CLOCK_REALTIME) && ordered(CLOCK_MONOTONIC) ? "ordered" : "goes back");
    slower.freq = 0;
    adjtimex(&slower);
}

/* System calls that reading the clock takes, counted by tracing: between two of getppid. */
static void clock_calls(void)
{
    static const clockid_t quick[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE,
                                      CLOCK_BOOTTIME};
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        syscall(SYS_getppid);
        for (int i = 0; i < 400; i++)
            by_library(quick[i % 4]);
        syscall(SYS_getppid);
        _exit(0);
    }
    int st, calls = 0, markers = 0;
    for (waitpid(pid, &st, 0); !WIFEXITED(st) && !WIFSIGNALED(st); waitpid(pid, &st, 0)) {
        struct user_regs_struct r;
        ptrace(PTRACE_GETREGS, pid, 0, &r);
        if (r.orig_rax == SYS_getppid)
            markers++;
        else if (markers == 2)
            calls++;
        ptrace(PTRACE_SYSCALL, pid, 0, 0);
    }
    /* A host whose clock source takes a system call makes some of them. */
    printf("%s\n", calls < 400 ? "few system calls" : "a system call each");
}

static void time_namespace(void)
{
    if (unshare(CLONE_NEWTIME))
        perror("unshare");
    int fd = open("/proc/self/timens_offsets", O_WRONLY);
    if (write(fd, "monotonic 1000000 0\n", 20) != 20)
        perror("offset");
    fflush(stdout);
    if (fork() == 0) {
        int64_t before = by_library(CLOCK_MONOTONIC);
        printf("monotonic %s, %s\n", before > 1000000L * 1000000000L ? "shifted" : "not shifted",
               ordered(CLOCK_MONOTONIC) && ordered(CLOCK_REALTIME) ? "ordered" : "goes back");
        exit(0);
    }
    wait(NULL);
}

/* Large enough that each area is several pages, which the kernel maps at once. */
#define RING_ENTRIES 256

static unsigned *at(char *ring, unsigned offset)
{
    return (unsigned *)(void *)(ring + offset);
}

/* A ring is made, used and forked with; the child gets a mapping of the same pages. */
static bool ring_survives_a_fork(uint64_t round)
{
    struct io_uring_params p = {0};
    int fd = (int)syscall(SYS_io_uring_setup, RING_ENTRIES, &p);
    if (fd < 0)
        return false;
    size_t size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t entries_size = p.sq_entries * sizeof(struct io_uring_sqe);
    char *ring =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, entries_size, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    if (ring == MAP_FAILED || entries == MAP_FAILED)
        return false;
    entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = round};
    at(ring, p.sq_off.array)[0] = 0;
    __atomic_store_n(at(ring, p.sq_off.tail), 1, __ATOMIC_RELEASE);
    bool ok = syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1;
    struct io_uring_cqe *done = (void *)(ring + p.cq_off.cqes);
    pid_t child = fork();
    if (child == 0)
        _exit(done->user_data != round || entries[0].user_data != round);
    int status = 0;
    ok = ok && waitpid(child, &status, 0) == child && status == 0 && done->user_data == round;
    munmap(entries, entries_size);
    munmap(ring, size);
    close(fd);
    return ok;
}

static void io_uring(void)
{
    int good = 0;
    for (uint64_t i = 1; i <= 200; i++)
        good += ring_survives_a_fork(i);
    printf("%d of 200 rings\n", good);
}

/* --- faults ----------------------------------------------------------------------------------- */

/* The kernel is linked here, and its memory follows; then come, in as many bytes, addresses for
 * what it maps later. */
#define KERNEL_START 0x60000000UL

static int bpf(int command, union bpf_attr *a)
{
    return (int)syscall(SYS_bpf, command, a, sizeof(*a));
}

/* A format that a BPF program may use: in a map which is never written again. */
static int constant_string(const char *text)
{
    char value[16] = {0};
    strncpy(value, text, sizeof(value) - 1);
    int key = 0;
    union bpf_attr a = {.map_type = BPF_MAP_TYPE_ARRAY,
                        .key_size = sizeof(key),
                        .value_size = sizeof(value),
                        .max_entries = 1,
                        .map_flags = BPF_F_RDONLY_PROG};
    int fd = bpf(BPF_MAP_CREATE, &a);
    a = (union bpf_attr){.map_fd = (uint32_t)fd, .key = (uintptr_t)&key, .value = (uintptr_t)value};
    if (fd < 0 || bpf(BPF_MAP_UPDATE_ELEM, &a))
        perror("map");
    a = (union bpf_attr){.map_fd = (uint32_t)fd};
    if (bpf(BPF_MAP_FREEZE, &a))
        perror("freeze");
    return fd;
}

#define INSN(c, d, s, o, i) \
    ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})

/* Has the kernel format the four bytes at an address of its own, and prints how that begins. */
static void peek_kernel(const char *what, uint64_t address)
{
    struct bpf_insn code[] = {
        INSN(BPF_LD | BPF_DW | BPF_IMM, 1, 0, 0, (int)(uint32_t)address),
        INSN(0, 0, 0, 0, (int)(address >> 32)),
        INSN(BPF_STX | BPF_MEM | BPF_DW, 10, 1, -8, 0),
        INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -16, 0),
        INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -24, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 10, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 1, 0, 0, -24),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, 16),
        INSN(BPF_LD | BPF_DW | BPF_IMM, 3, BPF_PSEUDO_MAP_VALUE, 0, constant_string("%pI4")),
        INSN(0, 0, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 4, 10, 0, 0),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, -8),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 5, 0, 0, 8),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_snprintf),
        INSN(BPF_LDX | BPF_MEM | BPF_W, 0, 10, -24, 0),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr a = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
                        .insns = (uintptr_t)code,
                        .insn_cnt = sizeof(code) / sizeof(code[0]),
                        .license = (uintptr_t) "GPL"};
    int fd = bpf(BPF_PROG_LOAD, &a);
    if (fd < 0)
        perror("program");
    char packet[64] = {0};
    a = (union bpf_attr){.test = {.prog_fd = (uint32_t)fd,
                                  .data_in = (uintptr_t)packet,
                                  .data_size_in = sizeof(packet)}};
    if (bpf(BPF_PROG_TEST_RUN, &a))
        perror("run");
    printf("%s %.4s\n", what, (const char *)&a.test.retval);
    fflush(stdout);
}

static void kernel_hole(void)
{
    struct sysinfo si;
    sysinfo(&si);
    peek_kernel("start", KERNEL_START); /* of an ELF file */
    /* Those addresses are given out from the lowest on: far from used up here. */
    peek_kernel("hole", KERNEL_START + si.totalram / 2 * 3);
}

static volatile sig_atomic_t handled;

static void on_usr1(int sig)
{
    handled = 1;
}

#define UFFD_PAGE 4096

/* A page that is there once somebody has answered on the descriptor. */
static char *awaited_page(int *fd)
{
    char *page = mmap(NULL, UFFD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)page, UFFD_PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    *fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (*fd < 0 || ioctl(*fd, UFFDIO_API, &api) || ioctl(*fd, UFFDIO_REGISTER, &range))
        perror("userfaultfd");
    return page;
}

static void wait_for_fault(int fd)
{
    struct uffd_msg m;
    if (read(fd, &m, sizeof(m)) != sizeof(m) || m.event != UFFD_EVENT_PAGEFAULT)
        perror("event");
}

static void *load(void *page)
{
    return (void *)(intptr_t) * (volatile char *)page;
}

/* The kernel's own access, as it copies from a pipe. */
static int text[2];

static void *receive(void *page)
{
    return (void *)(intptr_t)(read(text[0], page, 1) == 1 ? *(char *)page : -1);
}

/* A thread waits for a page, with a signal pending. A program's access is interrupted for the
 * handler, before the page is there; that of a system call is not. Neither spins. */
static void wait_for_page(const char *what, void *(*fn)(void *), bool interruptible)
{
    int fd;
    char *page = awaited_page(&fd);
    pthread_t t;
    clockid_t cpu;
    handled = 0;
    pthread_create(&t, NULL, fn, page);
    wait_for_fault(fd);
    pthread_kill(t, SIGUSR1);
    int64_t start = by_library(CLOCK_MONOTONIC);
    while (interruptible && !handled && by_library(CLOCK_MONOTONIC) < start + 5000000000L)
        usleep(1000);
    printf("%s: signal %s", what, handled ? "handled" : "pending");
    pthread_getcpuclockid(t, &cpu);
    start = by_library(CLOCK_MONOTONIC);
    int64_t used = by_library(cpu);
    usleep(300000);
    used = by_library(cpu) - used;
    printf(", %s", used < (by_library(CLOCK_MONOTONIC) - start) / 2 ? "asleep" : "spinning");
    static char content[UFFD_PAGE] = {42};
    struct uffdio_copy copy = {(uintptr_t)page, (uintptr_t)content, UFFD_PAGE, 0, 0};
    if (ioctl(fd, UFFDIO_COPY, &copy))
        perror("copy");
    void *value;
    pthread_join(t, &value);
    printf(", then %d, %s\n", (int)(intptr_t)value, handled ? "handled" : "pending");
    close(fd);
}

static void userfault(void)
{
    struct sigaction sa = {.sa_handler = on_usr1};
    sigaction(SIGUSR1, &sa, NULL);
    wait_for_page("load", load, true);
    if (pipe(text) || write(text[1], "*", 1) != 1)
        perror("pipe");
    wait_for_page("read", receive, false);
}

static void *tell(void *fd)
{
    wait_for_fault(*(int *)fd);
    if (write(text[1], "w", 1) != 1)
        perror("pipe");
    return NULL;
}

static void userfault_kill(void)
{
    char c;
    if (pipe(text))
        perror("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        int fd;
        char *page = awaited_page(&fd);
        pthread_t t;
        pthread_create(&t, NULL, tell, &fd);
        _exit((int)(intptr_t)load(page));
    }
    if (read(text[0], &c, 1) != 1)
        perror("pipe");
    kill(pid, SIGKILL);
    int st;
    waitpid(pid, &st, 0);
    printf("signal %d\n", WIFSIGNALED(st) ? WTERMSIG(st) : 0);
}

/* --- page faults ------------------------------------------------------------------------------ */

enum { FAULT_PAGE = 4096, FAULT_PAGES = 64, SMALL_PAGES = 16 };

static char written_data[3 * FAULT_PAGE] = {1}, written_bss[3 * FAULT_PAGE];

static long faults(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt;
}

static void write_pages(volatile char *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i * FAULT_PAGE]++;
}

static void write_everywhere(void)
{
    char stack[2 * FAULT_PAGE];
    write_pages(written_data, 3);
    write_pages(written_bss, 3);
    write_pages(stack, 2);
}

static void say_faults(const char *what, long n, long most)
{
    if (n <= most)
        printf("%s: few\n", what);
    else
        printf("%s: %ld, more than %ld\n", what, n, most);
}

/* What many programs do, one after another; each fault costs as much as two system calls. */
static void page_faults(void)
{
    write_everywhere();
    pid_t pid = fork();
    if (pid == 0) {
        write_everywhere();
        _exit((int)faults());
    }
    long before = faults();
    write_everywhere();
    say_faults("parent", faults() - before, 1);
    int st = -1;
    waitpid(pid, &st, 0);
    say_faults("child", WEXITSTATUS(st), 1);

    volatile char *p = mmap(NULL, SMALL_PAGES * FAULT_PAGE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    before = faults();
    for (int i = SMALL_PAGES - 1; i >= 0; i--)
        p[i * FAULT_PAGE] = p[i * FAULT_PAGE] + 1;
    say_faults("small mapping", faults() - before, 2);

    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char content[FAULT_PAGE];
    for (int i = 0; i < FAULT_PAGES; i++)
        if (read(fd, content, sizeof(content)) != sizeof(content))
            perror("read");
    p = mmap(NULL, FAULT_PAGES * FAULT_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    before = faults();
    write_pages(p, FAULT_PAGES);
    say_faults("private file", faults() - before, FAULT_PAGES / 4);
    close(fd);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*fn)(void);
    } checks[] = {
        {"seccomp_trap", seccomp_trap},
        {"int80", int80},
        {"breakpoints", breakpoints},
        {"debug_registers", debug_registers},
        {"xstate", xstate},
        {"odd_registers", odd_registers},
        {"clocks", clocks},
        {"clock_calls", clock_calls},
        {"io_uring", io_uring},
        {"time_namespace", time_namespace},
        {"kernel_hole", kernel_hole},
        {"userfault", userfault},
        {"userfault_kill", userfault_kill},
        {"page_faults", page_faults},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        if (argc == 2 && !strcmp(argv[1], checks[i].name))
            checks[i].fn();
    return 0;
}
