/* Which CPU a guest runs on.
 *
 * A user-mode kernel and its stub processes hand every system call back and forth; on one CPU that
 * costs a third of what it costs across two. So each guest is pinned, round-robin over the CPUs
 * that we may use. A process that makes many system calls may move to the next one while that is
 * idle.
 */
#pragma once

#include "util/err.h"

#include <stdint.h>

/* How many CPUs we may use, as far as that is known. */
unsigned placement_cpus(void);

/* The CPU for the next sandbox, by a counter kept in dirfd; -1 if the CPUs are not known. */
int placement_next(int dirfd);

/* The nth of the CPUs that we may use, starting over after the last. */
int placement_nth(uint32_t nth);

/* From now on, no other program shares a core with this process or one that it starts (core
 * scheduling). Does nothing where cores have one hardware thread. */
int placement_own_core(struct err *e);
