/* The cgroup that a container was told to be in (linux.cgroupsPath), and its limits.
 *
 * Its caller reads usage from there, and the host enforces its limits: on CPU time and CPUs, and on
 * memory, with room for a guest's overhead. The number of processes is limited inside the guest. In
 * the old hierarchies (v1) the path exists in each of them; `groups` in the state lists the
 * directories, so that they can be frozen and removed even if their creator died.
 */
#pragma once

#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define NO_LIMIT (-1.0) /* of numbers in linux.resources */

struct group_wish {
    const char *path; /* NULL: one named after the id, next to our own */
    bool systemd;     /* path is "slice:prefix:name" */
    const char *id;
    const json_t *resources;
};
/* *ret becomes the list of the groups' directories, which are not made yet: it can be stored before, so
 * that they are removed whatever happens. */
int group_plan(const struct group_wish *w, json_t **ret, struct err *e);
/* Makes them; those that this user may not make are taken from the list. */
int group_make(const struct group_wish *w, json_t *groups, struct err *e);
/* linux.resources, as far as the host's side of it goes; NO_LIMIT lifts a limit. Without groups, nothing.
 * own: the group is one that we chose, and may have no controller for memory or CPU time. */
int group_limit(const json_t *groups, const json_t *resources, bool own, struct err *e);
/* cpu.weight for cpu.shares: the same proportions on another scale. */
double group_weight(double shares);
/* Limits of the parent group, which is the whole pod's; 0: none, or not known. */
struct group_limits {
    uint64_t memory;
    double quota, period; /* of CPU time */
};
struct group_limits group_limits_above(const char *path, bool systemd);
/* Like fork(), in a process with one thread; *inside: the child starts inside the groups, and need
 * not enter them. */
pid_t group_fork(const json_t *groups, bool *inside);
/* Moves the calling process, which has one thread, into the groups; its children follow. */
int group_enter(const json_t *groups, struct err *e);
int group_freeze(const json_t *groups, bool freeze, struct err *e);
bool group_is_frozen(const json_t *groups);
/* Its processes' resource usage and limits, like `data` in runc's events; numbers that are not
 * known are left out. NULL: out of memory. */
json_t *group_usage(const json_t *groups);
/* Removes the groups, once their processes are gone. */
void group_remove(const json_t *groups);
