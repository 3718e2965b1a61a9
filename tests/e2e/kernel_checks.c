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
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
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
    printf(", set %s\n",
           by_library(CLOCK_REALTIME) / 1000000000L / 100 == 20000000 ? "seen" : "not seen");
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

static void io_uring(void)
{
    char params[128] = {0};
    printf("%s\n", syscall(SYS_io_uring_setup, 4, params) < 0 ? strerrorname_np(errno) : "there");
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
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        if (argc == 2 && !strcmp(argv[1], checks[i].name))
            checks[i].fn();
    return 0;
}
