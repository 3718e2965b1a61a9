/* Processes of the guest by session: what a command started is in its session. */
#ifndef MSB_AGENT_PROCS_H
#define MSB_AGENT_PROCS_H

#include <stdbool.h>
#include <sys/types.h>

/* SIGKILL to the process group `sid` and to every process whose session it is. Jobs of an
 * interactive shell have groups of their own, so the group alone is not enough. `sid` must be a
 * child that has not been reaped: until then its number cannot belong to anyone else. */
void procs_kill_session(pid_t sid);

/* Sends a signal to every process but PID 1 for whose session `wanted` says so. */
void procs_signal(int sig, bool (*wanted)(void *ctx, pid_t sid), void *ctx);

#endif
