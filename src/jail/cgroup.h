/* CPU shares below one, by the host's cgroups, where they are ours to use.
 *
 * Delegation differs from host to host: root may make groups anywhere, an ordinary user only where
 * a session manager delegated the cpu controller. Where it cannot be had the caller warns; nothing
 * else depends on it.
 */
#ifndef MSB_JAIL_CGROUP_H
#define MSB_JAIL_CGROUP_H

#include <sys/types.h>

/* Puts a process (and what it will start) into a new group that may use `cpus` of a CPU's time.
 * The group's path is noted in dirfd, so that cgroup_forget() finds it. -errno when the host does
 * not let us. */
int cgroup_limit_cpu(int dirfd, const char *name, pid_t pid, double cpus);

/* Removes the group noted in dirfd, if there is one and nobody is in it any more. */
void cgroup_forget(int dirfd);

#endif
