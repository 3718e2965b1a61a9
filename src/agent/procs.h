/* Killing what a command started. */
#ifndef MSB_AGENT_PROCS_H
#define MSB_AGENT_PROCS_H

#include <sys/types.h>

/* SIGKILL to the process group `sid` and to every process whose session it is. Jobs of an
 * interactive shell have groups of their own, so the group alone is not enough. `sid` must be a
 * child that has not been reaped: until then its number cannot belong to anyone else. */
void procs_kill_session(pid_t sid);

#endif
