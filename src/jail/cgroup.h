/* Limits by the host's cgroups, where we may use them.
 *
 * Delegation differs from host to host: root may create groups anywhere, an ordinary user only
 * where a session manager has delegated controllers. CPU time below one CPU can be limited in no
 * other way. For memory and processes a group is the second line: it also counts what the host's
 * kernel holds for a sandbox (page tables, socket buffers), which nothing else limits.
 *
 * A process starts in its group, since moving one makes every fork on the host wait for as long as a
 * whole sandbox takes to start. In cgroup v1 there are only moves; there, CPU time is limited for
 * those who ask for that, and nothing else.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_kind { CGROUP_CPU, CGROUP_MEMORY, CGROUP_PIDS, CGROUP_KINDS };

struct cgroup_limits {
    double cpus;     /* CPUs' worth of time; 0 = as much as there is */
    uint64_t memory; /* bytes, with everything; 0 = no limit */
    uint64_t pids;   /* processes and threads; 0 = no limit */
};

struct cgroups {
    char *path;              /* of the group; NULL = none */
    int fd;                  /* for starting in it; -1 = processes have to be moved */
    int error[CGROUP_KINDS]; /* why a limit is not in force: -errno; 0 = it is, or is not wanted */
};

/* Makes the group, with its limits; the errors say which could not be. Its path is recorded in
 * dirfd for cgroup_forget(). */
void cgroup_make(struct cgroups *g, int dirfd, const char *name, const struct cgroup_limits *l);
/* As fork(), in a process with one thread; the child starts in the group, or cgroup_put() has to
 * put it there. */
pid_t cgroup_fork(struct cgroups *g);
void cgroup_put(struct cgroups *g, pid_t pid);
void cgroup_free(struct cgroups *g);

/* What a sandbox with that much memory gets. Generous: the host counts the page cache of its disks,
 * too. */
void cgroup_limits_for(struct cgroup_limits *l, uint64_t memory_bytes);

/* CPU time used in the group recorded in dirfd, by ended processes too; 0 without a group. */
uint64_t cgroup_cpu_ns(int dirfd);

/* Sets the CPU time limit of the group, which must have one, to that of `cpus` CPUs. */
int cgroup_set_cpus(int dirfd, double cpus);
bool cgroup_has_cpus(int dirfd); /* whether that is possible */

/* Removes the group recorded in dirfd, if there is one and it is empty. */
void cgroup_forget(int dirfd);

/* For any group, by its path. Writes to a file of it; -errno. Removes it, in so many tries while
 * processes are still ending in it. */
int cgroup_write(const char *group, const char *file, const char *text);
enum { CGROUP_TRIES = 250, CGROUP_PAUSE_NS = 2000000 };
void cgroup_remove(const char *group, int tries);
