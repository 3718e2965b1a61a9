/* Dropping privileges, in named steps, for the monitor and what it starts.
 *
 *   1. jail_unshare       new user, mount, pid, ipc and uts namespaces, with private mounts
 *                         (in the stage, which then forks the monitor as their pid 1: when
 *                         it dies, the host's kernel kills everything that it started)
 *   2. jail_become        the only mapped user; for root, an otherwise unused one
 *   3. jail_enter_root    an empty root, with the sandbox's run/ directory at /run
 *   4. (the engine starts, and makes its own, tighter jail)
 *   5. jail_drop_caps     no capabilities, not even inside the namespace; no_new_privs
 *   6. seccomp_enter      only the system calls that the code makes (jail/seccomp.h)
 *
 * Where the host refuses the first step, reduced.h has what is left of the first three.
 */
#pragma once

#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The user that a monitor runs as on the host: the caller, or, for root, an id from an otherwise
 * unused range, derived from the sandbox's name so that two sandboxes rarely share one. A root that
 * may not change its user, or has no other user in its namespace (`unshare -r`), counts as an
 * ordinary user. */
struct jail_identity {
    uid_t uid;
    gid_t gid;
    bool dropped; /* root's: uid and gid are not our own */
};
void jail_identity(const char *name, struct jail_identity *ret);

/* Step 1, in the child. Its maps are then written from outside by jail_map. */
int jail_unshare(struct err *e);
/* In the parent: maps `id` to the same numbers inside, or to 0 if `id->dropped`. */
int jail_map(pid_t child, const struct jail_identity *id, struct err *e);
/* In the parent, with CAP_SETUID and CAP_SETGID: maps every id that we have to the same number. */
int jail_map_all(pid_t child, struct err *e);
/* Step 2, in the child. */
int jail_become(const struct jail_identity *id, struct err *e);

/* Step 3: the current directory becomes /run in a new read-only root, whose only other entry is the
 * empty directory /jail. Uses no path of the old root. */
int jail_enter_root(struct err *e);
/* Another root for a child in its own mount namespace: a tmpfs mounted on `dir`, entered.
 * The caller fills it, then calls jail_pivot. */
int jail_mount_tmpfs(const char *dir, const char *options, struct err *e);
int jail_pivot(struct err *e); /* the current directory becomes /, the old root is detached */

/* Makes this process and its children the first victims when the host runs out of memory, whatever
 * protection the caller has: nothing else limits some of what the host's kernel holds for a guest
 * (page tables, socket buffers). For the child, before step 1. */
enum { JAIL_OOM_SCORE = 500 };
void jail_yield_memory(void);

/* Lowers soft and hard limits to `most`, unless they are lower already. */
struct jail_limit {
    int what; /* RLIMIT_* */
    uint64_t most;
};
int jail_set_limits(const struct jail_limit *limits, size_t n, struct err *e);

/* Step 5. */
int jail_drop_caps(struct err *e);
/* The same, but keeps these (bits by CAP_* number), as far as the process has them. */
int jail_keep_caps(uint64_t keep, struct err *e);
/* Only drops them from the bounding set, if this process may. */
int jail_drop_bounding(uint64_t keep, struct err *e);
/* Lets a capability survive the execution of a program by a user who is not root in its namespace. */
int jail_pass_cap(unsigned cap, struct err *e);
/* Whether a capability is in effect. */
bool jail_has_cap(unsigned cap);
