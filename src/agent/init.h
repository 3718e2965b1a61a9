/* An init of the image's as PID 1 of the commands (F_INIT).
 *
 * The agent stays PID 1 of the guest. All its children from here on are in a PID namespace of their
 * own, whose first process is the init: it sees itself as PID 1, adopts the orphans of commands, and
 * may power off or just end without taking the kernel with it. The agent notices, saves the disks and
 * switches off. There is one /proc that programs see, that of the namespace.
 */
#pragma once

#include "agent/request.h"
#include "util/err.h"

#include <sys/types.h>

/* Once, before the first command. The init's PID as the agent sees it, or -errno. */
pid_t init_start(const struct config *cfg, struct err *e);
/* The signal that asks it to stop everything and end. */
int init_stop_signal(const struct config *cfg, pid_t init);
