#include "util/process.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

int process_close_others(unsigned from, const int *keep, size_t n)
{
    for (;;) {
        unsigned next = UINT_MAX; /* the smallest one to keep at or above `from` */
        for (size_t i = 0; i < n; i++)
            if (keep[i] >= 0 && (unsigned)keep[i] >= from && (unsigned)keep[i] < next)
                next = (unsigned)keep[i];
        if (next > from && close_range(from, next == UINT_MAX ? UINT_MAX : next - 1, 0) < 0)
            return -errno;
        if (next == UINT_MAX)
            return 0;
        from = next + 1;
    }
}

void process_default_signals(void)
{
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

void process_forget_environment(const char *prefix)
{
    char **to = environ;
    for (char **from = environ; from && *from; from++) {
        if (strncmp(*from, prefix, strlen(prefix)) == 0)
            *to++ = *from;
        else
            explicit_bzero(*from, strlen(*from));
    }
    if (to)
        *to = NULL;
}
