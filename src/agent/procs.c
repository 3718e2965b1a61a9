#include "agent/procs.h"

#include "util/cleanup.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* A process may fork between being listed and being killed; its child is found by the next pass.
 * Killed processes stay visible until they are reaped, hence an upper bound on the passes. */
enum { PASSES_MAX = 4 };

/* The next process except PID 1; 0 at the end. */
static pid_t next_process(DIR *d)
{
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        pid_t pid = 0;
        const char *p = ent->d_name;
        while (*p >= '0' && *p <= '9')
            pid = pid * 10 + (*p++ - '0');
        if (!*p && pid > 1)
            return pid;
    }
    return 0;
}

static bool kill_pass(pid_t sid)
{
    bool found = false;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    pid_t pid;
    while ((pid = next_process(d))) {
        if (pid == sid || getsid(pid) != sid)
            continue;
        found = true;
        (void)kill(pid, SIGKILL);
    }
    return found;
}

void procs_signal(int sig, bool (*wanted)(void *ctx, pid_t sid), void *ctx)
{
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    pid_t pid;
    while ((pid = next_process(d))) {
        pid_t sid = getsid(pid);
        if (sid > 0 && wanted(ctx, sid)) /* kernel threads have none */
            (void)kill(pid, sig);
    }
}

void procs_kill_session(pid_t sid)
{
    (void)kill(-sid, SIGKILL);
    for (int i = 0; i < PASSES_MAX && kill_pass(sid); i++)
        ;
}
