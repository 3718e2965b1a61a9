/* Memory, files, descriptors and processes without end. */
#include "evil.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RW (PROT_READ | PROT_WRITE)
#define MIB (1L << 20)

enum { FILES_MOST = 128, NOFILE_SLACK = 128, PROCESSES_MOST = 20000, QUESTIONS = 20000 };

static long take(long step, int flags)
{
    long got = 0;
    for (; step >= 4096; step /= 4)
        while (got < 1024 * MIB) {
            long at = call(SYS_mmap, 0, step, RW, flags, -1, 0);
            if (at < 0 && at > -4096)
                break;
            for (long i = 0; i < step; i += 4096)
                *(volatile char *)(at + i) = 1;
            got += step;
        }
    return got;
}

/* As much as the real kernel needs of it, once. */
void shared_memory(void)
{
    if (call(SYS_mmap, 0, 16384, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != -ENOMEM)
        fail("16 KiB of it");
    long got = take(MIB, MAP_SHARED | MAP_ANONYMOUS);
    if (got > 12288)
        fail("%ld KiB of it", got / 1024);
}

/* Memory that becomes writable later counts as well. */
static void make_writable(void)
{
    long at = call(SYS_mmap, 0, 256 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at > 0 && CALL3(SYS_mprotect, at, 256 * MIB, RW) == 0)
        fail("256 MiB became writable");
}

void private_memory(void)
{
    make_writable();
    long got = take(64 * MIB, MAP_PRIVATE | MAP_ANONYMOUS);
    long brk = CALL1(SYS_brk, 0);
    while (CALL1(SYS_brk, brk + 4096) == brk + 4096) {
        *(volatile char *)brk = 1;
        brk += 4096;
    }
    if (got > 8 * MIB)
        fail("%ld KiB of it", got / 1024);
    hold("%ld KiB", got / 1024);
}

void full_files(void)
{
    static char block[65536];
    long got = 0, k;
    memset(block, 1, sizeof(block));
    for (int i = 0; i < 4; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/tmp/full%d", i);
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        (void)signal(SIGXFSZ, SIG_IGN);
        while (fd >= 0 && (k = write(fd, block, sizeof(block))) > 0)
            got += k;
        (void)unlink(path); /* open, it stays */
    }
    hold("%ld KiB", got / 1024);
}

void many_inodes(void)
{
    unsigned n = 0;
    char path[32];
    do
        (void)snprintf(path, sizeof(path), "/tmp/d%u", n);
    while (mkdir(path, 0700) == 0 && ++n < 100000);
    if (n > FILES_MOST)
        fail("%u directories", n);
}

/* Descriptors that hold something, and descriptors in flight. */
void descriptors(void)
{
    unsigned n = 0;
    int pair[2];
    static char block[65536];
    while (n < 100000 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
        n += 2;
        if (n < 64) {
            (void)fcntl(pair[0], F_SETFL, O_NONBLOCK);
            while (write(pair[0], block, sizeof(block)) > 0)
                ;
        }
    }
    if (n > 128 + 2 * 128 + NOFILE_SLACK)
        fail("%u descriptors", n);
    if (errno != EMFILE)
        fail("it ended with %d after %u", errno, n);
}

/* Every one of them takes all it can. */
void programs(void)
{
    int fd = program_file(0);
    long n = 0;
    while (n < PROCESSES_MOST && start_program(fd, NULL) > 0)
        n++;
    if (n < 16)
        fail("only %ld could be started", n);
    hold("%ld processes", n);
}

/* The program's variables alone are more than it may have; or its arguments. */
void big_program(void)
{
    int status = 0;
    static char words[100 * 1024];
    memset(words, 'x', sizeof(words) - 1);
    long pid = start_program(program_file(0), words);
    if (pid > 0 && (CALL3(SYS_wait4, pid, &status, 0) != pid || WEXITSTATUS(status) != NOT_STARTED))
        fail("100 KiB of arguments: %x", status);
    pid = start_program(program_file(1), NULL);
    if (pid < 0)
        fail("it could not be started: %ld", pid);
    if (CALL3(SYS_wait4, pid, &status, 0) != pid || !(WIFSIGNALED(status) || WEXITSTATUS(status)))
        fail("it ended with %x", status);
}

/* Of the warden, faster than it can answer, and while signals arrive. */
static volatile unsigned ticks;
static void on_tick(int sig)
{
    ticks++;
}

void questions(void)
{
    struct sigaction act = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    int timer = 0;
    (void)sigaction(SIGALRM, &act, NULL);
    struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    if (CALL3(SYS_timer_create, CLOCK_MONOTONIC, &ev, &timer) != 0 ||
        call(SYS_timer_settime, timer, 0, (long)&often, 0, 0, 0) != 0)
        fail("no timer");
    for (int i = 0; i < QUESTIONS; i++) {
        long r = i % 2 ? call(SYS_mmap, 0, MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
                       : call(SYS_execveat, -1, (long)"", 0, 0, AT_EMPTY_PATH, 0);
        if (r != -ENOMEM && r != -EPERM && r != -EINTR)
            fail("question %d was answered with %ld", i, r);
    }
    if (!ticks)
        fail("no signal came");
}

void console_flood(void)
{
    static char block[65536];
    memset(block, 'x', sizeof(block));
    for (size_t i = 0; i < sizeof(block); i += 1000)
        block[i] = "\n\033\0\377"[i / 1000 % 4];
    for (int i = 0; i < 1024; i++) /* 64 MiB */
        if (write(1, block, sizeof(block)) < 0)
            fail("cannot write: %d", errno);
    (void)!write(1, "\n", 1);
}
