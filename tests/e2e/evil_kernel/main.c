#include "evil.h"

#include "../../rawcall.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PASSED = 42, FAILED = 43 };

/* Which attack: the test writes its name into the file. */
static volatile char wanted[64] = "@WANTED@";

static const struct {
    const char *name;
    void (*fn)(void);
} attacks[] = {
#define ATTACK(name, expected) {#name, name},
#include "attacks.def"
#undef ATTACK
};

static void say(const char *what, const char *fmt, va_list ap)
{
    char line[256], text[200];
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    int n = snprintf(line, sizeof(line), "evil: %s: %s\n", what, text);
    (void)!write(1, line, (size_t)n);
}

void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("failed", fmt, ap);
    va_end(ap);
    _exit(FAILED);
}

void wait_for_ever(void)
{
    for (;;)
        (void)CALL3(SYS_poll, 0, 0, -1);
}

void hold(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("holding", fmt, ap);
    va_end(ap);
    wait_for_ever();
    _exit(FAILED);
}

long call(long nr, long a, long b, long c, long d, long e, long f)
{
    return rawcall(nr, a, b, c, d, e, f);
}

uint32_t any(uint32_t below)
{
    static uint64_t x = 88172645463325252ULL;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)(x >> 16) % below;
}

void fill_with_any(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)any(256);
}

/* --- programs -------------------------------------------------------------------------------- */

extern const char greedy_start[], greedy_end[], big_start[], big_end[];
__asm__(".section .rodata\n"
        "greedy_start: .incbin \"greedy\"\n greedy_end:\n"
        "big_start: .incbin \"big\"\n big_end:\n"
        ".text\n");

int program_file(int big)
{
    const char *path = big ? "/tmp/big" : "/tmp/greedy";
    const char *p = big ? big_start : greedy_start, *end = big ? big_end : greedy_end;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0700);
    while (fd >= 0 && p < end) {
        ssize_t k = write(fd, p, (size_t)(end - p));
        if (k <= 0)
            fail("cannot write a program: %d", errno);
        p += k;
    }
    (void)close(fd);
    fd = open(path, O_RDONLY);
    if (fd < 0)
        fail("cannot open a program: %d", errno);
    return fd;
}

struct program {
    int fd;
    char *argument;
};

static int become(void *arg)
{
    struct program *p = arg;
    char *const argv[] = {"greedy", p->argument, NULL};
    (void)call(SYS_execveat, p->fd, (long)"", (long)argv, 0, AT_EMPTY_PATH, 0);
    _exit(NOT_STARTED);
}

long start_program(int fd, char *argument)
{
    struct program p = {fd, argument};
    static char stack[65536] __attribute__((aligned(16)));
    pid_t pid = clone(become, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &p);
    return pid < 0 ? -errno : pid;
}

char **arguments;

int main(int argc, char **argv)
{
    arguments = argv;
    for (size_t i = 0; i < COUNT(attacks); i++)
        if (strcmp((const char *)wanted, attacks[i].name) == 0) {
            attacks[i].fn();
            _exit(PASSED);
        }
    fail("there is no such attack");
}
