/* The reduced jail: what is left where the host refuses namespaces, as the default profiles of most
 * containers do. It takes the place of steps 1 to 3 of jail.h; limits, capabilities and filters
 * follow as they do there.
 *
 *   1. reduced_become    its own user, where root may change it
 *   2. reduced_enter     a root that is the current directory, where root may change that; and
 *                        Landlock, where the host has it: no file by name outside of that directory
 *
 * There is no pid namespace: a process must end whatever it started. There is no network namespace,
 * and a user-mode kernel would see the caller's processes, sockets and files, so it gets what it
 * needs from its warden instead, and may make none of those calls itself (engine/uml/desk.h).
 */
#pragma once

#include "jail/jail.h"

int reduced_become(const struct jail_identity *id, struct err *e);

/* Keeps the current directory. Programs can be executed from `program_fd` (-1: none). */
int reduced_enter(int program_fd, struct err *e);

/* Like the above for the process of a user-mode kernel: nothing by name at all, and no signals to
 * others. */
int reduced_close(int program_fd, struct err *e);
