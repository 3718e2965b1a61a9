#include "agent/procs.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A process may fork between being listed and being killed; its child is found in the next pass.
 * Killed processes stay visible until they are reaped, hence an upper bound on the passes. */
enum { PASSES_MAX = 4, STATUS_MAX = 4096 };

static int pinned = -1;

void procs_pin(void)
{
    if (pinned < 0)
        pinned = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static DIR *open_proc(void)
{
    return pinned < 0 ? dir_read_at(AT_FDCWD, "/proc") : dir_read_at(pinned, ".");
}

static bool read_file(pid_t pid, const char *file, char *to, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "%s%d/%s", pinned < 0 ? "/proc/" : "", (int)pid, file);
    AUTO_CLOSE int fd = openat(pinned, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);
    to[n > 0 ? n : 0] = '\0';
    return n > 0;
}

bool procs_name(pid_t pid, char *to, size_t size)
{
    if (!read_file(pid, "comm", to, size))
        return false;
    to[strcspn(to, "\n")] = '\0';
    return true;
}

/* NSpid: its number in each namespace, ours first. */
pid_t procs_inner(pid_t pid)
{
    char text[STATUS_MAX];
    const char *at = pinned >= 0 && read_file(pid, "status", text, sizeof(text))
                         ? strstr(text, "\nNSpid:")
                         : NULL;
    if (!at)
        return pid;
    pid_t inner = pid;
    char *end;
    at += strlen("\nNSpid:");
    for (long v; (v = strtol(at, &end, 10)) > 0 && end != at; at = end)
        inner = (pid_t)v;
    return inner;
}

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
    AUTO_CLOSEDIR DIR *d = open_proc();
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
    AUTO_CLOSEDIR DIR *d = open_proc();
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
