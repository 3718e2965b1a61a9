/* Pods: containers that share a guest.
 *
 * A pod's first container (`pause`, `catatonit -P`) boots the guest and holds the namespaces. The
 * others are process trees in it (agent/container.h): each has a process on the host like any
 * container (init.h), which hands the container's files to the guest (PROTO_TREE), and whose
 * connection to the monitor keeps the container alive.
 */
#pragma once

#include "oci/config.h"
#include "oci/state.h"

/* Finds the container whose guest this one will be in; NULL: it has its own. -ENOENT with *e set:
 * the caller names one that does not exist. Settles c->pids_of. */
int pod_find(const struct oci_runtime *rt, struct container_config *c, char **ret, struct err *e);

/* Makes the pod's guest create the container, with `tree` as its files. Returns the connection that
 * keeps it alive; *number is for pod_address(). dirfd: the pod's sandbox. */
int pod_join(int dirfd, const struct container_config *c, int tree, uint32_t *number,
             struct err *e);
/* Ends the container, and waits until what it wrote is on the host. Takes the connection. */
void pod_leave(int sock);
/* Drops the container's files, which are not needed any more. */
void pod_forget(const struct oci_runtime *rt, const char *pod, const char *id);

/* Changes settings of its cgroup in the guest: "FILE=VALUE". */
int pod_set(const struct oci_runtime *rt, const struct oci_container *c,
            const struct strlist *settings, struct err *e);
/* Adds its limits in the guest, from linux.resources, to the list; false: out of memory. */
bool pod_limits(const json_t *resources, struct strlist *to);

/* Directs a new connection to that container; 0: to the guest. 0 or -errno. */
int pod_address(int sock, uint32_t number);
/* A connection for commands in a container. */
int pod_connect(const struct oci_runtime *rt, const struct oci_container *c, struct err *e);
