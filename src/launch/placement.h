/* Which CPU a guest runs on.
 *
 * A user-mode kernel and its stub processes hand every system call to each other; on one CPU that
 * costs a third of what it costs across two. So each guest is pinned, round-robin over the CPUs
 * that we may use. While the next one is idle, a process with many system calls may move there.
 */
#pragma once

#include "util/err.h"

#include <stdint.h>

/* How many CPUs we may use, as far as that is known. */
unsigned placement_cpus(void);

/* The CPU for the next sandbox, by a counter kept in dirfd; -1 when the CPUs are not known. */
int placement_next(int dirfd);

/* The nth of the CPUs that we may use, starting over after the last. */
int placement_nth(uint32_t nth);

/* From now on no other program uses the hardware threads of a core on which this process, or one that
 * it starts, is running (core scheduling). There is nothing to do where a core has one thread. */
int placement_own_core(struct err *e);
