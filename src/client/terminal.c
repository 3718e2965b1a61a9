#include "client/terminal.h"

#include "util/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

/* raw_fd >= 0 means that `cooked` has to be restored; it is written last and cleared first. */
static volatile sig_atomic_t raw_fd = -1;
static struct termios cooked;

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGXCPU};

void terminal_restore(void)
{
    int fd = raw_fd;
    if (fd < 0)
        return;
    raw_fd = -1;
    int saved = errno;
    while (tcsetattr(fd, TCSANOW, &cooked) < 0 && errno == EINTR)
        ;
    errno = saved;
}

/* The handler is one-shot (SA_RESETHAND): returning to a fault, or raising, now kills us. */
static void on_crash(int sig)
{
    terminal_restore();
    (void)raise(sig);
}

static void arm_once(void)
{
    static bool armed;
    if (armed)
        return;
    armed = true;
    (void)atexit(terminal_restore);
    for (size_t i = 0; i < ARRAY_LEN(crash_signals); i++) {
        struct sigaction old, sa = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
        if (sigaction(crash_signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(crash_signals[i], &sa, NULL);
    }
}

static int set_raw(int fd)
{
    struct termios raw = cooked;
    cfmakeraw(&raw);
    while (tcsetattr(fd, TCSANOW, &raw) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int terminal_raw(int fd)
{
    if (raw_fd >= 0)
        return 0;
    if (tcgetattr(fd, &cooked) < 0)
        return -errno;
    arm_once();
    raw_fd = fd;
    int r = set_raw(fd);
    if (r < 0)
        raw_fd = -1;
    return r;
}

void terminal_suspend(void)
{
    int fd = raw_fd;
    terminal_restore();
    struct sigaction old, dfl = {.sa_handler = SIG_DFL};
    sigset_t tstp, mask;
    (void)sigemptyset(&tstp);
    (void)sigaddset(&tstp, SIGTSTP);
    (void)sigaction(SIGTSTP, &dfl, &old);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &tstp, &mask); /* we stop here */
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    (void)sigaction(SIGTSTP, &old, NULL);
    if (fd >= 0)
        (void)terminal_raw(fd);
}

void terminal_resumed(void)
{
    if (raw_fd >= 0)
        (void)set_raw(raw_fd);
}

bool terminal_size(uint32_t *rows, uint32_t *cols)
{
    for (int fd = 0; fd <= 2; fd++) {
        struct winsize ws;
        if (ioctl(fd, TIOCGWINSZ, &ws) == 0 && ws.ws_row && ws.ws_col) {
            *rows = ws.ws_row;
            *cols = ws.ws_col;
            return true;
        }
    }
    return false;
}
