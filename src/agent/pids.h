/* A limit on the processes and threads of the guest: a cgroup in which PID 1 is, and so everything
 * that it starts.
 *
 * As with Docker, a command from outside starts even when the limit is reached, so that someone can
 * clean up; what it starts is refused.
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

int pids_limit(uint32_t max, struct err *e);
/* PID 1 leaves the group, to start one process more. False: there is no limit. */
bool pids_leave(void);
/* The calling process joins it: PID 1 again, and the child that it started meanwhile. Makes system
 * calls and nothing else. */
void pids_join(void);
