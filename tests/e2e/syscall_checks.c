/* What a system call leaves of a program's registers, whichever way its kernel returns from it. Each
 * check prints one line that does not depend on the machine, and is the same on hardware.
 *
 *     syscall_checks NAME
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* In the order of load_registers below; all but RAX, RCX, R11 and RSP. */
enum { RBX, RDX, RSI, RDI, RBP, R8, R9, R10, R12, R13, R14, R15, REGISTERS };

enum {
    CALLS = 60000,
    PROCESSES = 3,
    ALARM_US = 150,
    THREADS = 4,
    ROUNDS = 400,
    AREA = 16384,
    XFEATURES = 0xe7, /* x87, SSE, AVX, AVX-512 */
    XHEADER = 512,
    X87_LAST = 6,
    MXCSR = 24,
    SOFTWARE = 464, /* how a signal frame is marked */
};

#define STATUS_FLAGS 0x8d5 /* CF PF AF ZF SF OF */
#define DIRECTION 0x400

static volatile sig_atomic_t alarms;
static uint64_t state = 88172645463325252ULL;

static uint64_t any(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

struct call {
    uint64_t in[REGISTERS], out[REGISTERS], flags, flags_out, rcx, r11, rip;
    unsigned char *load, *before, *after;
};

/* A system call with these registers, the vectors as XSAVE stores them before and after. */
__attribute__((noinline)) static void make_call(struct call *c)
{
    static struct call *here;
    static uint64_t stack;
    here = c;
    __asm__ volatile(
        "push %%rbx; push %%rbp; push %%r12; push %%r13; push %%r14; push %%r15\n"
        "mov %%rsp, %[stack]; mov %[here], %%rcx; mov %[mask], %%eax; xor %%edx, %%edx\n"
        "mov %c[load](%%rcx), %%rbx; xrstor64 (%%rbx)\n"
        "mov %c[before](%%rcx), %%rbx; xsave64 (%%rbx)\n"
        "lea 1f(%%rip), %%rbx; mov %%rbx, %c[rip](%%rcx)\n"
        "mov 0(%%rcx), %%rbx; mov 8(%%rcx), %%rdx; mov 16(%%rcx), %%rsi; mov 24(%%rcx), %%rdi\n"
        "mov 32(%%rcx), %%rbp; mov 40(%%rcx), %%r8; mov 48(%%rcx), %%r9; mov 56(%%rcx), %%r10\n"
        "mov 64(%%rcx), %%r12; mov 72(%%rcx), %%r13; mov 80(%%rcx), %%r14; mov 88(%%rcx), %%r15\n"
        "mov %[nr], %%eax; pushq %c[flags](%%rcx); popf; syscall\n"
        "1: pushf; cld; mov %[here], %%rax\n"
        "mov %%rcx, %c[rcx](%%rax); mov %%r11, %c[r11](%%rax); popq %c[flags_out](%%rax)\n"
        "lea %c[out](%%rax), %%rcx\n"
        "mov %%rbx, 0(%%rcx); mov %%rdx, 8(%%rcx); mov %%rsi, 16(%%rcx); mov %%rdi, 24(%%rcx)\n"
        "mov %%rbp, 32(%%rcx); mov %%r8, 40(%%rcx); mov %%r9, 48(%%rcx); mov %%r10, 56(%%rcx)\n"
        "mov %%r12, 64(%%rcx); mov %%r13, 72(%%rcx); mov %%r14, 80(%%rcx); mov %%r15, 88(%%rcx)\n"
        "mov %[here], %%rcx; mov %c[after](%%rcx), %%rbx; mov %[mask], %%eax; xor %%edx, %%edx\n"
        "xsave64 (%%rbx); mov %[stack], %%rsp\n"
        "pop %%r15; pop %%r14; pop %%r13; pop %%r12; pop %%rbp; pop %%rbx\n"
        : [stack] "+m"(stack)
        : [here] "m"(here), [mask] "i"(XFEATURES), [nr] "i"(SYS_getppid),
          [load] "i"(offsetof(struct call, load)), [before] "i"(offsetof(struct call, before)),
          [after] "i"(offsetof(struct call, after)), [flags] "i"(offsetof(struct call, flags)),
          [flags_out] "i"(offsetof(struct call, flags_out)), [rcx] "i"(offsetof(struct call, rcx)),
          [r11] "i"(offsetof(struct call, r11)), [rip] "i"(offsetof(struct call, rip)),
          [out] "i"(offsetof(struct call, out))
        : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

/* Clobbers the registers of whom it interrupts. */
static void on_alarm(int sig)
{
    __asm__ volatile("pxor %%xmm0, %%xmm0; pcmpeqd %%xmm15, %%xmm15; fld1; fstp %%st(0)" ::
                         : "xmm0", "xmm15");
    alarms++;
}

static unsigned features(void)
{
    unsigned a, b, c, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a & XFEATURES;
}

static void choose(struct call *c, unsigned use, size_t size)
{
    for (int i = 0; i < REGISTERS; i++)
        c->in[i] = any();
    c->flags = 0x202 | (any() & (STATUS_FLAGS | DIRECTION));
    for (size_t i = 0; i < size; i += 8) {
        uint64_t v = any();
        memcpy(c->load + i, &v, 8);
    }
    /* XSAVE stores nothing of what is in its initial state, which is zero. */
    memset(c->before, 0, size);
    memset(c->after, 0, size);
    memset(c->load + XHEADER, 0, 64);
    /* Now all of them, now some */
    uint64_t bv = use & (any() | 3);
    memcpy(c->load + XHEADER, &bv, 8);
    memset(c->load, 0, 32);
    memcpy(c->load, "\x7f\x03", 2);
    memcpy(c->load + MXCSR, "\x80\x1f\0\0", 4);
}

static const char *wrong(const struct call *c, size_t size)
{
    /* Where the x87 was last: some CPUs keep it only with an exception. */
    memset(c->before + X87_LAST, 0, MXCSR - X87_LAST);
    memset(c->after + X87_LAST, 0, MXCSR - X87_LAST);
    memcpy(c->after + XHEADER, c->before + XHEADER, 64);
    if (memcmp(c->in, c->out, sizeof(c->in)))
        return "a general register";
    if ((c->flags ^ c->flags_out) & (STATUS_FLAGS | DIRECTION))
        return "a flag";
    if (c->rcx != c->rip || (c->r11 ^ c->flags) & (STATUS_FLAGS | DIRECTION))
        return "RCX or R11";
    if (memcmp(c->before, c->after, size))
        return "a vector register";
    return NULL;
}

static int try_calls(unsigned seed)
{
    unsigned a, size, c, d;
    static struct call call;
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, ALARM_US}, {0, ALARM_US}};
    __cpuid_count(0xd, 0, a, size, c, d);
    for (unsigned i = 0; i < 3; i++) {
        unsigned char *area = aligned_alloc(64, AREA);
        memset(area, 0, AREA);
        *(i == 0 ? &call.load : i == 1 ? &call.before : &call.after) = area;
    }
    state += seed;
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < CALLS; i++) {
        choose(&call, features(), size);
        make_call(&call);
        const char *what = wrong(&call, size);
        if (what) {
            printf("%s is lost, call %d\n", what, i);
            return 1;
        }
    }
    return alarms == 0;
}

/* Several processes, which the kernel switches between, each interrupted by signals. */
static void registers(void)
{
    int status, failed = 0;
    for (unsigned i = 0; i < PROCESSES; i++)
        if (fork() == 0)
            exit(try_calls(i));
    while (wait(&status) > 0)
        failed += status != 0;
    printf("%d of %d processes fail\n", failed, PROCESSES);
}

/* --- vector registers of threads ---------------------------------------------------------------- */

/* XMM9 and MXCSR hold `v` and `csr` before and after; the program that a vfork() starts gets neither. */
static bool stays(long nr, uint64_t v, uint32_t csr, bool in_child)
{
    static char *const argv[] = {"syscall_checks", "end", NULL};
    uint64_t out;
    uint32_t csr_out;
    long rax = nr;
    __asm__ volatile(
        "movq %[v], %%xmm9; ldmxcsr %[csr]; syscall\n"
        "cmp %[vfork], %[nr]; jne 1f; test %%rax, %%rax; jnz 1f\n"
        "pcmpeqd %%xmm9, %%xmm9; mov %[yield], %%eax; syscall\n"
        "mov %[path], %%rdi; mov %[argv], %%rsi; xor %%edx, %%edx; mov %[exec], %%eax; syscall\n"
        "mov $99, %%edi; mov %[exit], %%eax; syscall\n"
        "1: movq %%xmm9, %[out]; stmxcsr %[csr_out]"
        : "+a"(rax), [out] "=&r"(out), [csr_out] "=m"(csr_out)
        : [v] "r"(v), [csr] "m"(csr), [nr] "r"(nr), [path] "r"("/proc/self/exe"), [argv] "r"(argv),
          [vfork] "i"(SYS_vfork), [yield] "i"(SYS_sched_yield), [exec] "i"(SYS_execve),
          [exit] "i"(SYS_exit)
        : "rcx", "r11", "rdi", "rsi", "rdx", "xmm9", "memory", "cc");
    bool ok = out == v && csr_out == csr && rax >= 0;
    if (in_child && rax == 0)
        _exit(!ok);
    int status = 0;
    if (rax > 0 && (waitpid((pid_t)rax, &status, 0) != rax || status != 0))
        return false;
    return ok;
}

static void *keep_vectors(void *arg)
{
    uintptr_t n = (uintptr_t)arg, lost = 0;
    uint32_t csr = 0x1f80 | (uint32_t)(n % 4) << 13; /* how to round */
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t v = n << 32 | i;
        lost += !stays(SYS_sched_yield, v, csr, false);
        if (i % 8 == n % 8)
            raise(SIGALRM);
        if (i % 16 == n % 16)
            lost += !stays(SYS_fork, v + 1, csr, true);
        if (i % 64 == n % 64)
            lost += !stays(SYS_vfork, v + 2, csr, false);
    }
    return (void *)lost;
}

/* Threads share one stub, in which each finds its own; so do the children of vfork(). Threads come and go. */
static void threads(void)
{
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    uintptr_t lost = 0;
    sigaction(SIGALRM, &act, NULL);
    for (uintptr_t round = 0; round < 3; round++) {
        pthread_t t[THREADS];
        void *ret;
        for (uintptr_t i = 0; i < THREADS; i++)
            if (pthread_create(&t[i], NULL, keep_vectors, (void *)(round * THREADS + i)) != 0)
                exit(1);
        for (unsigned i = 0; i < THREADS; i++)
            lost += pthread_join(t[i], &ret) == 0 ? (uintptr_t)ret : 1;
    }
    printf("lost %lu times\n", (unsigned long)lost);
}

/* --- the long way ------------------------------------------------------------------------------- */

static void change_all(int sig, siginfo_t *si, void *p)
{
    greg_t *r = ((ucontext_t *)p)->uc_mcontext.gregs;
    static const int which[] = {REG_RCX, REG_R11, REG_RBX, REG_RDX, REG_R8, REG_R15};
    for (size_t i = 0; i < sizeof(which) / sizeof(which[0]); i++)
        r[which[i]] = 1000 + (greg_t)i;
    r[REG_EFL] |= 1;
}

/* A handler that runs at the end of a call can change what the call itself would have. */
static void changed(void)
{
    struct sigaction act = {.sa_sigaction = change_all, .sa_flags = SA_SIGINFO};
    uint64_t rcx, r11, rbx, rdx, carry;
    register uint64_t r8 __asm__("r8"), r15 __asm__("r15");
    long rax = SYS_kill;
    sigaction(SIGUSR1, &act, NULL);
    __asm__ volatile("clc; syscall; setc %%sil; movzbl %%sil, %%esi; mov %%r11, %%rdi"
                     : "+a"(rax), "=c"(rcx), "=D"(r11), "=b"(rbx), "=d"(rdx), "=r"(r8), "=r"(r15),
                       "=S"(carry)
                     : "D"(getpid()), "S"(SIGUSR1)
                     : "r11", "memory", "cc");
    printf("%ld: rcx %lu r11 %lu rbx %lu rdx %lu r8 %lu r15 %lu carry %lu\n", rax, rcx, r11, rbx,
           rdx, r8, r15, carry);
}

extern const char steps_from[], steps_to[];

static void stepped(void)
{
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    __asm__ volatile(
        "steps_from: mov %0, %%eax; syscall; nop; mov %0, %%eax; syscall; nop; steps_to: nop" ::"i"(
            SYS_getppid)
        : "rax", "rcx", "r11", "memory");
    _exit(3);
}

/* A debugger's steps end after each instruction, system calls among them. */
static void steps(void)
{
    struct user_regs_struct r;
    int status, seen = 0;
    pid_t pid = fork();
    if (pid == 0)
        stepped();
    for (waitpid(pid, &status, 0); WIFSTOPPED(status); waitpid(pid, &status, 0)) {
        ptrace(PTRACE_GETREGS, pid, 0, &r);
        if (r.rip >= (uintptr_t)steps_from && r.rip <= (uintptr_t)steps_to)
            printf("%lu ", r.rip - (uintptr_t)steps_from);
        seen += r.rip == (uintptr_t)steps_to;
        ptrace(seen ? PTRACE_CONT : PTRACE_SINGLESTEP, pid, 0, 0);
    }
    printf("exit %d\n", WEXITSTATUS(status));
}

/* --- signal frames ------------------------------------------------------------------------------ */

static sigjmp_buf refused;
static void (*edit_frame)(ucontext_t *uc);
static _Alignas(64) unsigned char bare[2 * XHEADER];

static void bad_mxcsr(ucontext_t *uc)
{
    uc->uc_mcontext.fpregs->mxcsr = UINT32_MAX;
}

static void bad_features(ucontext_t *uc)
{
    ((unsigned char *)uc->uc_mcontext.fpregs)[XHEADER + 7] = 0x10;
}

/* Only the FXSAVE area counts, and what is behind it is anything. */
static void no_marks(ucontext_t *uc)
{
    struct _libc_fpstate *fp = (struct _libc_fpstate *)bare;
    memset(bare, 0xff, sizeof(bare));
    *fp = *uc->uc_mcontext.fpregs;
    memset((unsigned char *)fp + SOFTWARE, 0, XHEADER - SOFTWARE);
    fp->_xmm[7].element[0] = 4711;
    uc->uc_mcontext.fpregs = fp;
}

static void on_edit(int sig, siginfo_t *info, void *uc)
{
    edit_frame(uc);
}

static void on_refused(int sig)
{
    siglongjmp(refused, 1);
}

static void return_from(const char *name, void (*edit)(ucontext_t *uc))
{
    static char stack[AREA];
    struct sigaction edits = {.sa_sigaction = on_edit, .sa_flags = SA_SIGINFO};
    struct sigaction refuses = {.sa_handler = on_refused, .sa_flags = SA_ONSTACK};
    uint32_t xmm7 = 0;
    edit_frame = edit;
    sigfillset(&edits.sa_mask);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
    sigaction(SIGUSR1, &edits, NULL);
    sigaction(SIGSEGV, &refuses, NULL);
    if (sigsetjmp(refused, 1)) {
        printf("%s: refused\n", name);
        return;
    }
    long pid = getpid(), nr = SYS_kill;
    __asm__ volatile("syscall\n\tmovd %%xmm7, %1"
                     : "+a"(nr), "=r"(xmm7)
                     : "D"(pid), "S"((long)SIGUSR1)
                     : "rcx", "r11", "memory", "xmm7");
    printf("%s: returned, xmm7 %u\n", name, xmm7);
}

/* What a handler leaves in its frame, after a system call, is loaded or refused. */
static void frames(void)
{
    return_from("mxcsr", bad_mxcsr);
    return_from("features", bad_features);
    return_from("no marks", no_marks);
}

/* --- protection keys ---------------------------------------------------------------------------- */

/* A system call with this PKRU, and what PKRU is after it. In between nothing uses memory. */
static long call_with(uint32_t pkru, uint32_t *after)
{
    long result;
    uint32_t before;
    __asm__ volatile("xor %%ecx, %%ecx; rdpkru; mov %%eax, %[before]\n"
                     "mov %[pkru], %%eax; xor %%edx, %%edx; wrpkru\n"
                     "mov %[nr], %%eax; syscall; mov %%rax, %[result]\n"
                     "xor %%ecx, %%ecx; rdpkru; mov %%eax, %[after]\n"
                     "mov %[before], %%eax; wrpkru"
                     : [result] "=&r"(result), [before] "=&r"(before), [after] "=&r"(*after)
                     : [pkru] "r"(pkru), [nr] "i"(SYS_getppid)
                     : "rax", "rcx", "rdx", "r11", "memory", "cc");
    return result;
}

/* A system call keeps PKRU, even if it denies access to what has key 0: all memory, the stub's, too.
 * (Elsewhere this may end with SIGSEGV, if the process is preempted and the C library uses rseq.) */
static void key(void)
{
    static const uint32_t all[] = {0, 1, 2, 3, 0x55555554, 0x55555555, 0xffffffff, 0xfffffffc};
    unsigned wrong = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t pkru = all[i % (sizeof(all) / sizeof(all[0]))], after;
        wrong += call_with(pkru, &after) != getppid() || after != pkru;
    }
    printf("%u calls are wrong\n", wrong);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*fn)(void);
    } checks[] = {{"registers", registers}, {"threads", threads}, {"changed", changed},
                  {"steps", steps},         {"frames", frames},   {"key", key}};
    setbuf(stdout, NULL);
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        if (argc == 2 && !strcmp(argv[1], checks[i].name))
            checks[i].fn();
    return 0;
}
