/* The guest's processes, by session: a command's processes are in its session. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Sends SIGKILL to the process group `sid` and to every process in that session. Jobs of an
 * interactive shell have their own groups, so the group alone is not enough. `sid` must be a child
 * that has not been reaped: until then its number cannot be reused. */
void procs_kill_session(pid_t sid);

/* Sends a signal to every process except PID 1 whose session is `wanted`. */
void procs_signal(int sig, bool (*wanted)(void *ctx, pid_t sid), void *ctx);

/* From here on, /proc may belong to the commands' PID namespace: keeps using the one that is
 * mounted now. */
void procs_pin(void);
/* The name of a process's program; false: there is none. */
bool procs_name(pid_t pid, char *to, size_t size);
/* The PID of one of our processes as it and other commands see it. */
pid_t procs_inner(pid_t pid);
