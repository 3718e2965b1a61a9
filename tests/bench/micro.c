/* What single operations cost, in nanoseconds: run on the host and in sandboxes, to compare (guest.py).
 *
 *     micro [ROUNDS]           one line per operation: name, least and median of the rounds
 *     micro time COMMAND...    runs a command and prints how long it took
 *
 * Linked statically, so that the C library is the same everywhere. Works in the current directory.
 */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, FAULTS = 16384, ROUNDS = 7, ROUNDS_MAX = 100 };

static const char *self;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void must(int r, const char *what)
{
    if (r < 0)
        die(what);
}

/* --- operations: each does its work n times ---------------------------------------------------- */

static void op_getpid(unsigned n)
{
    while (n--)
        (void)syscall(SYS_getpid);
}

static void op_clock(unsigned n)
{
    struct timespec t;
    while (n--)
        (void)clock_gettime(CLOCK_REALTIME, &t);
}

static void op_stat(unsigned n)
{
    struct stat st;
    while (n--)
        must(stat("/bin/sh", &st), "stat");
}

static void op_open_read_close(unsigned n)
{
    char buf[1024];
    while (n--) {
        int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
        must(fd, "/etc/passwd");
        must((int)read(fd, buf, sizeof(buf)), "read");
        (void)close(fd);
    }
}

static char *map(size_t size)
{
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

static void op_fault(unsigned n)
{
    char *p = map((size_t)n * PAGE);
    for (unsigned i = 0; i < n; i++)
        p[(size_t)i * PAGE] = 1;
    must(munmap(p, (size_t)n * PAGE), "munmap");
}

static void op_map_touch_unmap(unsigned n)
{
    while (n--) {
        char *p = map((size_t)64 * PAGE);
        *p = 1;
        must(munmap(p, (size_t)64 * PAGE), "munmap");
    }
}

static void op_pipe(unsigned n)
{
    int to[2], from[2];
    char c = 0;
    if (pipe(to) < 0 || pipe(from) < 0)
        die("pipe");
    pid_t pid = fork();
    must(pid, "fork");
    if (pid == 0) {
        (void)close(to[1]);
        while (read(to[0], &c, 1) == 1)
            must((int)write(from[1], &c, 1), "write");
        _exit(0);
    }
    while (n--) {
        must((int)write(to[1], &c, 1), "write");
        must((int)read(from[0], &c, 1), "read");
    }
    for (unsigned i = 0; i < 2; i++) {
        (void)close(to[i]);
        (void)close(from[i]);
    }
    (void)waitpid(pid, NULL, 0);
}

static void on_trap(int sig)
{
    (void)sig;
}

/* Calls that a filter turns into a signal. Natively, that and a ping-pong is what a user-mode kernel
 * cannot do without: its system calls are such a signal and a hand-over to another process and back. */
static void op_trap(unsigned n)
{
    struct sock_filter insn[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = sizeof(insn) / sizeof(insn[0]), .filter = insn};
    pid_t pid = fork(); /* filters stay */
    must(pid, "fork");
    if (pid == 0) {
        if (signal(SIGSYS, on_trap) == SIG_ERR || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
            _exit(1);
        op_getpid(n);
        _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        die("a filter that traps");
}

static void op_fork(unsigned n)
{
    while (n--) {
        pid_t pid = fork();
        must(pid, "fork");
        if (pid == 0)
            _exit(0);
        (void)waitpid(pid, NULL, 0);
    }
}

static void op_exec(unsigned n)
{
    while (n--) {
        pid_t pid = vfork();
        must(pid, "vfork");
        if (pid == 0) {
            (void)execl(self, self, "true", (char *)NULL);
            _exit(1);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0)
            die(self);
    }
}

static void *nothing(void *arg)
{
    return arg;
}

static void op_thread(unsigned n)
{
    while (n--) {
        pthread_t t;
        if (pthread_create(&t, NULL, nothing, NULL) != 0)
            die("pthread_create");
        (void)pthread_join(t, NULL);
    }
}

static void file_name(char name[32], unsigned i)
{
    (void)snprintf(name, 32, "micro.%u", i);
}

static void op_create(unsigned n)
{
    static const char content[1024] = "content";
    char name[32];
    for (unsigned i = 0; i < n; i++) {
        file_name(name, i);
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        must(fd, name);
        must((int)write(fd, content, sizeof(content)), name);
        (void)close(fd);
    }
}

/* What op_create has made. */
static void op_unlink(unsigned n)
{
    char name[32];
    for (unsigned i = 0; i < n; i++) {
        file_name(name, i);
        must(unlink(name), name);
    }
}

static const struct {
    const char *name;
    void (*run)(unsigned n);
    unsigned n;
} ops[] = {
    {"getpid", op_getpid, 5000},
    {"clock_gettime", op_clock, 20000},
    {"stat", op_stat, 3000},
    {"open, read, close", op_open_read_close, 1500},
    {"anonymous fault", op_fault, FAULTS},
    {"mmap, touch, munmap", op_map_touch_unmap, 500},
    {"pipe ping-pong", op_pipe, 500},
    {"trapped system call", op_trap, 5000},
    {"fork, wait", op_fork, 60},
    {"vfork, exec", op_exec, 30},
    {"thread create, join", op_thread, 150},
    {"create 1 KiB file", op_create, 500},
    {"unlink", op_unlink, 500},
};

/* --- measuring ---------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int time_command(char **argv)
{
    uint64_t start = now();
    pid_t pid = vfork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    int status = -1;
    must(pid, "vfork");
    (void)waitpid(pid, &status, 0);
    printf("%llu\n", (unsigned long long)(now() - start));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    enum { N = sizeof(ops) / sizeof(ops[0]) };
    static double took[N][ROUNDS_MAX];
    if (argc == 2 && strcmp(argv[1], "true") == 0)
        return 0;
    if (argc > 2 && strcmp(argv[1], "time") == 0)
        return time_command(argv + 2);
    self = argv[0];
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    for (int r = 0; r < rounds; r++)
        for (unsigned i = 0; i < N; i++) {
            uint64_t start = now();
            ops[i].run(ops[i].n);
            took[i][r] = (double)(now() - start) / ops[i].n;
        }
    for (unsigned i = 0; i < N; i++) {
        qsort(took[i], (size_t)rounds, sizeof(double), compare);
        printf("%s\t%.1f\t%.1f\n", ops[i].name, took[i][0], took[i][rounds / 2]);
    }
    return 0;
}
