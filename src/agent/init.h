/* The image's own init as PID 1 of the commands (F_INIT).
 *
 * The agent stays PID 1 of the guest. All its children from here on are in a separate PID
 * namespace, whose first process is the init: it sees itself as PID 1, adopts the orphans of
 * commands, and may power off or just exit without taking down the kernel. The agent notices, saves
 * the disks and powers off. The only /proc that programs see is that namespace's.
 */
#pragma once

#include "agent/request.h"
#include "util/err.h"

#include <sys/types.h>

/* Call once, before the first command. Returns the init's PID as the agent sees it, or -errno. */
pid_t init_start(const struct config *cfg, struct err *e);
/* The signal that tells it to stop everything and exit. */
int init_stop_signal(const struct config *cfg, pid_t init);
