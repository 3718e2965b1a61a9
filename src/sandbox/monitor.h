/* The monitor process of a sandbox, as verbs see it from outside: found by its lock, watched and
 * ended by pidfd. */
#pragma once

#include "store/store.h"

/* A pidfd of the live monitor, or -ESRCH. dirfd: the sandbox's directory. */
int monitor_pidfd(int dirfd);
/* True if the process ends within that time. */
bool monitor_wait(int pidfd, uint64_t timeout_ms);
/* Ends the monitor, if one is running: cleanly within grace_ms, by force after that; by force at
 * once if grace_ms is 0. */
int monitor_terminate(struct sandbox *sb, uint64_t grace_ms, struct err *e);
/* Kills a monitor left behind by a creation that died. */
void monitor_kill_leftover(const struct store *s, const char *name);
/* Waits for a monitor that is ending, but not too long; updates sb->state.pid. */
void monitor_wait_ending(struct sandbox *sb);
