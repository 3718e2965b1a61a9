/* Lets the attacker run once on each of the monitor's threads, as soon as its filter is closed. */
#include "attack.h"
#include "jail/seccomp.h"
#include "util/loop.h"

#include <stdbool.h>

int __real_seccomp_enter(enum seccomp_profile p);
int __wrap_seccomp_enter(enum seccomp_profile p);
int __real_loop_turn(struct loop *l, int timeout_ms);
int __wrap_loop_turn(struct loop *l, int timeout_ms);
int __real_loop_run(struct loop *l);
int __wrap_loop_run(struct loop *l);

static _Thread_local int profile = -1;

int __wrap_seccomp_enter(enum seccomp_profile p)
{
    if (p == SECCOMP_NET)
        attack_prepare();
    int r = __real_seccomp_enter(p);
    profile = (int)p;
    return r;
}

/* The monitor's main loop. */
int __wrap_loop_turn(struct loop *l, int timeout_ms)
{
    static bool done;
    if (profile == SECCOMP_MONITOR && !done) {
        done = true;
        attack_from_monitor();
    }
    attack_report_network();
    return __real_loop_turn(l, timeout_ms);
}

/* The loops of its other threads. */
int __wrap_loop_run(struct loop *l)
{
    if (profile == SECCOMP_NET)
        attack_from_network();
    return __real_loop_run(l);
}
