/* An evil kernel: a program in the place of the guest's kernel, inside the jail of the uml engine.
 * There is no fork() in here, no time to sleep, and nothing to read but what it makes itself. */
#ifndef EVIL_H
#define EVIL_H

#include <stddef.h>
#include <stdint.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Ends the attack: something was possible that must not be. */
void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *fmt, ...);
/* Says how much it has, and keeps it until it is killed. */
void __attribute__((noreturn, format(printf, 1, 2))) hold(const char *fmt, ...);
void wait_for_ever(void);

/* A system call as it is; -errno on failure. */
long call(long nr, long a, long b, long c, long d, long e, long f);
#define CALL1(nr, a) call(nr, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(nr, a, b) call(nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(nr, a, b, c) call(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)

/* The same numbers every time. */
uint32_t any(uint32_t below);
void fill_with_any(void *p, size_t n);

/* What the engine tells its kernel. */
extern char **arguments;

/* A program in a file of our own, ready for execveat(); big: one that wants 64 MiB. */
int program_file(int big);
/* Starts it; the process's id, or -errno. One that cannot be executed exits with NOT_STARTED. */
enum { NOT_STARTED = 77 };
long start_program(int fd, char *argument);

#define ATTACK(name, expected) void name(void);
#include "attacks.def"
#undef ATTACK

#endif
