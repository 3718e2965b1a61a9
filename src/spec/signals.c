#include "spec/signals.h"

#include "util/parse.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* The first one that programs may use, as the C library counts; the last one. */
enum { REALTIME_MIN = 34, REALTIME_MAX = 64 };

/* RTMIN, RTMIN+3, RTMAX, RTMAX-1. */
static int realtime_number(const char *name)
{
    bool min = strncasecmp(name, "RTMIN", 5) == 0;
    uint64_t n = 0;
    if (!min && strncasecmp(name, "RTMAX", 5) != 0)
        return 0;
    if (name[5] && (name[5] != (min ? '+' : '-') || parse_u64(name + 6, &n) < 0))
        return 0;
    if (n > REALTIME_MAX - REALTIME_MIN)
        return 0;
    return min ? REALTIME_MIN + (int)n : REALTIME_MAX - (int)n;
}

int signal_number(const char *name)
{
    uint64_t n;
    if (parse_u64(name, &n) == 0)
        return n >= 1 && n <= REALTIME_MAX ? (int)n : 0;
    if (strncasecmp(name, "SIG", 3) == 0)
        name += 3;
    for (int sig = 1; sig < 32; sig++) {
        const char *known = sigabbrev_np(sig);
        if (known && strcasecmp(name, known) == 0)
            return sig;
    }
    return realtime_number(name);
}
