/* The cgroup that a container was told to be in (linux.cgroupsPath), and its limits.
 *
 * Its caller reads usage from there, and the host enforces what it limits: CPU time and CPUs, and
 * memory, with room for what a guest costs on top of its own. The number of processes is the guest's
 * business. In the old hierarchies (v1) the path exists in each of them; `groups` in the state lists
 * the directories, so that they can be frozen and removed whatever died before.
 */
#pragma once

#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define NO_LIMIT (-1.0) /* of numbers in linux.resources */

struct group_wish {
    const char *path; /* NULL: one of that id near our own */
    bool systemd;     /* path is "slice:prefix:name" */
    const char *id;
    const json_t *resources;
};
/* *ret becomes the list of the groups' directories, which are not made yet: it can be stored before, so
 * that they are removed whatever happens. */
int group_plan(const struct group_wish *w, json_t **ret, struct err *e);
/* Makes them; those that this user may not make are taken from the list. */
int group_make(const struct group_wish *w, json_t *groups, struct err *e);
/* linux.resources, as far as the host's side of it goes; NO_LIMIT lifts a limit. own: the group is one that we
 * chose, and may have no controller for memory. */
int group_limit(const json_t *groups, const json_t *resources, bool own, struct err *e);
/* cpu.weight for cpu.shares: the same proportions on another scale. */
double group_weight(double shares);
/* The limit of the group above that one, which is a whole pod's; 0: it has none, or it is not known. */
uint64_t group_memory_above(const char *path, bool systemd);
/* As fork(), in a process with one thread; *inside: the child started in the groups, and need not
 * enter them. */
pid_t group_fork(const json_t *groups, bool *inside);
/* Moves the calling process, which has one thread, there; its children follow. */
int group_enter(const json_t *groups, struct err *e);
int group_freeze(const json_t *groups, bool freeze, struct err *e);
bool group_is_frozen(const json_t *groups);
/* What its processes use and may use, as `data` of runc's events; numbers that are not known are left
 * out. NULL: out of memory. */
json_t *group_usage(const json_t *groups);
/* Once its processes are gone. */
void group_remove(const json_t *groups);
