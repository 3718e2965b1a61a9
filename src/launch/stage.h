/* The stage, from which the monitor is forked, and the janitor (see launch.h), with what crosses
 * into them. Used by launch.c alone.
 */
#pragma once

#include "jail/cgroup.h"
#include "jail/jail.h"
#include "launch/intercept.h"
#include "monitor/params.h"
#include "store/store.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { CARGO_CPUINFO_MAX = 16 * 1024 };

/* Everything that crosses into the new processes. */
struct cargo {
    const struct store *store;
    int dirfd; /* the sandbox's directory; not owned */
    warn_fn warn;
    struct monitor_params p;
    struct jail_identity id;
    struct cgroups group;
    bool in_group;   /* of the caller's */
    const int *gate; /* see struct launch_options */
    bool refused;    /* the host refuses namespaces */
    bool awaited;    /* helpers are ready, or have failed */
    bool counting;   /* a share server reads a whole directory before serving it */
    bool serving;    /* share servers are ready */
    int run_fd;
    int sync_fd; /* stage to launcher: its pid, once unshared, or -errno; launcher to stage: go */
    char cpuinfo[CARGO_CPUINFO_MAX];
    char *host_cas;
    pid_t connector_stage;
    struct intercept intercept;
    pid_t share_stage[SPEC_SHARES_MAX];
};

/* Calls fn for each descriptor that it owns. They are -1 until they are opened (launch_begin); the
 * stage closes all others, the launcher closes these (cargo_close). */
void cargo_each_fd(struct cargo *c, void (*fn)(int *fd, void *arg), void *arg);

/* Makes the sandbox's cgroup, as far as the host allows, and forks the stage into it, or the
 * janitor, which forks the stage. Returns the child's PID or -errno. */
pid_t stage_fork(struct cargo *c);
/* Has the cgroup's limits apply to the stage; warns of those that cannot. */
void stage_limit(struct cargo *c, pid_t stage);
