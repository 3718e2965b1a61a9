#include "agent/procs.h"

#include "util/cleanup.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* A process may fork between being listed and being killed; its child is found by the next pass.
 * Killed processes stay visible until they are reaped, hence an upper bound on the passes. */
enum { PASSES_MAX = 4 };

static bool kill_pass(pid_t sid)
{
    bool found = false;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        pid_t pid = 0;
        const char *p = ent->d_name;
        while (*p >= '0' && *p <= '9')
            pid = pid * 10 + (*p++ - '0');
        if (*p || pid <= 1 || pid == sid || getsid(pid) != sid)
            continue;
        found = true;
        (void)kill(pid, SIGKILL);
    }
    return found;
}

void procs_kill_session(pid_t sid)
{
    (void)kill(-sid, SIGKILL);
    for (int i = 0; i < PASSES_MAX && kill_pass(sid); i++)
        ;
}
