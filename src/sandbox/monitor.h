/* The monitor process of a sandbox, as verbs see it from outside: found by its lock, watched and
 * ended by pidfd. */
#pragma once

#include "store/store.h"

/* A pidfd of the live monitor, or -ESRCH. dirfd: the sandbox's directory. */
int monitor_pidfd(int dirfd);
/* True when the process has ended within that time. */
bool monitor_wait(int pidfd, uint64_t timeout_ms);
/* Ends the monitor, if one lives: in order within grace_ms, by force after that; by force at once if
 * grace_ms is 0. */
int monitor_terminate(struct sandbox *sb, uint64_t grace_ms, struct err *e);
/* Kills the monitor that a creation left behind when it died. */
void monitor_kill_leftover(const struct store *s, const char *name);
/* Waits for a monitor that is ending, unless that takes too long; brings sb->state.pid up to date. */
void monitor_wait_ending(struct sandbox *sb);
