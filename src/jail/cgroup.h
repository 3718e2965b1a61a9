/* Limits by the host's cgroups, where we may use them.
 *
 * Delegation differs from host to host: root may create groups anywhere, an ordinary user only
 * where a session manager has delegated controllers. There is no other way to limit CPU time to
 * less than one CPU. For memory and processes, a group is a second line of defense: it also counts
 * what the host's kernel holds for a sandbox (page tables, socket buffers), which nothing else
 * limits.
 *
 * A process starts in its group, since moving one makes every fork on the host wait for as long as
 * a whole sandbox takes to start. In cgroup v1, processes can only be moved; there, only CPU time
 * is limited, and only on request.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_kind { CGROUP_CPU, CGROUP_MEMORY, CGROUP_PIDS, CGROUP_KINDS };

struct cgroup_limits {
    double cpus;     /* CPUs' worth of time; 0 = as much as there is */
    uint64_t memory; /* bytes, in total; 0 = no limit */
    uint64_t pids;   /* processes and threads; 0 = no limit */
};

struct cgroups {
    char *path;              /* of the group; NULL = none */
    int fd;                  /* for starting in it; -1 = processes have to be moved */
    int error[CGROUP_KINDS]; /* why a limit is not in force: -errno; 0 = it is, or not requested */
};

/* Makes the group and sets its limits; the errors tell which ones failed. Its path is recorded in
 * dirfd for cgroup_forget(). */
void cgroup_make(struct cgroups *g, int dirfd, const char *name, const struct cgroup_limits *l);
/* Like fork(), in a process with one thread; the child starts in the group, or cgroup_put() has to
 * put it there. */
pid_t cgroup_fork(struct cgroups *g);
void cgroup_put(struct cgroups *g, pid_t pid);
void cgroup_free(struct cgroups *g);

/* The limits for a sandbox with that much memory. Generous, since the host also counts the page
 * cache of its disks. */
void cgroup_limits_for(struct cgroup_limits *l, uint64_t memory_bytes);

/* CPU time used in the group recorded in dirfd, including ended processes; 0 without a group. */
uint64_t cgroup_cpu_ns(int dirfd);

/* Sets the CPU time limit of the group, which must have one, to `cpus` CPUs. */
int cgroup_set_cpus(int dirfd, double cpus);
bool cgroup_has_cpus(int dirfd); /* whether that is possible */

/* Removes the group recorded in dirfd, if there is one and it is empty. */
void cgroup_forget(int dirfd);

/* For any group, by its path. The first writes to one of its files; -errno. The second removes it,
 * retrying that often while processes in it are still ending. */
int cgroup_write(const char *group, const char *file, const char *text);
enum { CGROUP_TRIES = 250, CGROUP_PAUSE_NS = 2000000 };
void cgroup_remove(const char *group, int tries);
