/* Locks by name in a directory, for work that should be done once: the second process waits for the
 * first and then finds the result. The kernel drops a lock when its holder dies, so an unlocked
 * lock file marks work that was interrupted. */
#pragma once

#include <stdbool.h>

/* Waits for the lock and returns a descriptor that holds it, or -errno. Without `wait`:
 * -EWOULDBLOCK if it is held. */
int lock_take(int dirfd, const char *name, bool wait);
/* Removes the lock file, then releases the lock. */
void lock_drop(int dirfd, const char *name, int fd);
