/* CPU limits below one CPU, by the host's cgroups, where we may use them.
 *
 * Delegation differs from host to host: root may create groups anywhere, an ordinary user only
 * where a session manager has delegated the cpu controller. If it is not available the caller
 * warns; nothing else depends on it.
 */
#ifndef MSB_JAIL_CGROUP_H
#define MSB_JAIL_CGROUP_H

#include <sys/types.h>

/* Puts a process (and what it will start) into a new group that may use `cpus` CPUs' worth of time.
 * The group's path is recorded in dirfd for cgroup_forget(). -errno when that is not possible. */
int cgroup_limit_cpu(int dirfd, const char *name, pid_t pid, double cpus);

/* Removes the group recorded in dirfd, if there is one and it is empty. */
void cgroup_forget(int dirfd);

#endif
