/* Pods: containers that share a guest.
 *
 * A pod's first container (`pause`, `catatonit -P`) boots the guest and holds the namespaces. The
 * others are process trees in it (agent/container.h): each has a process on the host like any
 * container (init.h), whose files it hands to the guest (PROTO_TREE), and whose connection to the
 * monitor is the container's life.
 */
#pragma once

#include "oci/config.h"
#include "oci/state.h"

/* The container whose guest this one is to be in; NULL: it has its own. -ENOENT with *e set:
 * its caller says that there is one. Settles c->pids_of. */
int pod_find(const struct oci_runtime *rt, struct container_config *c, char **ret, struct err *e);

/* Has the pod's guest make the container, with `tree` as its files. The connection that it lives by;
 * *number is for pod_address(). dirfd: the pod's sandbox. */
int pod_join(int dirfd, const struct container_config *c, int tree, uint32_t *number,
             struct err *e);
/* Ends the container, and waits until what it wrote is on the host. Takes the connection. */
void pod_leave(int sock);
/* The container's files are not needed any more. */
void pod_forget(const struct oci_runtime *rt, const char *pod, const char *id);

/* Changes settings of its cgroup in the guest: "FILE=VALUE". */
int pod_set(const struct oci_runtime *rt, const struct oci_container *c,
            const struct strlist *settings, struct err *e);
/* Its limits there, for linux.resources, are added to the list; false: out of memory. */
bool pod_limits(const json_t *resources, struct strlist *to);

/* What is sent over a new connection is for that container; 0: for the guest. 0 or -errno. */
int pod_address(int sock, uint32_t number);
/* A connection for commands in a container. */
int pod_connect(const struct oci_runtime *rt, const struct oci_container *c, struct err *e);
