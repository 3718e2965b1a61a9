/* A limit on the processes and threads of the guest: a cgroup that contains PID 1, and so
 * everything that it starts.
 *
 * As with Docker, a command from outside starts even if the limit is reached, so that one can clean
 * up; what it starts is refused.
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

int pids_limit(uint32_t max, struct err *e);
/* PID 1 leaves the group, to start one more process. False: there is no limit. */
bool pids_leave(void);
/* Moves the calling process into the group: PID 1 itself, and each child that it starts. Makes only
 * system calls. */
void pids_join(void);
