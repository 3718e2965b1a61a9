/* What the C library has only since 2.29, for those that are older: the same, by system calls. */
#undef _FILE_OFFSET_BITS /* which would give stat64 the name of stat */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct stat and struct stat64 are the same here, and so are the calls. */
#define ALSO(name) __attribute__((alias(#name)))

int fstatat(int fd, const char *path, struct stat *st, int flags)
{
    return (int)syscall(SYS_newfstatat, fd, path, st, flags);
}

int stat(const char *path, struct stat *st)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

int lstat(const char *path, struct stat *st)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *st)
{
    return (int)syscall(SYS_fstat, fd, st);
}

int fstatat64(int fd, const char *path, struct stat64 *st, int flags) ALSO(fstatat);
int stat64(const char *path, struct stat64 *st) ALSO(stat);
int lstat64(const char *path, struct stat64 *st) ALSO(lstat);
int fstat64(int fd, struct stat64 *st) ALSO(fstat);

int mknodat(int fd, const char *path, mode_t mode, dev_t dev)
{
    return (int)syscall(SYS_mknodat, fd, path, mode, (unsigned)dev);
}

int close_range(unsigned first, unsigned last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}

const char *sigabbrev_np(int number)
{
    static const char *const names[] = {
        [SIGHUP] = "HUP",   [SIGINT] = "INT",       [SIGQUIT] = "QUIT", [SIGILL] = "ILL",
        [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",   [SIGFPE] = "FPE",
        [SIGKILL] = "KILL", [SIGUSR1] = "USR1",     [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
        [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",     [SIGTERM] = "TERM", [SIGSTKFLT] = "STKFLT",
        [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",     [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
        [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",     [SIGURG] = "URG",   [SIGXCPU] = "XCPU",
        [SIGXFSZ] = "XFSZ", [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH",
        [SIGPOLL] = "POLL", [SIGPWR] = "PWR",       [SIGSYS] = "SYS",
    };
    return number > 0 && (size_t)number < sizeof(names) / sizeof(*names) ? names[number] : NULL;
}
