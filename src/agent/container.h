/* Containers of a pod: several process trees in one guest, with one network.
 *
 * A container is a child of PID 1 that serves sessions as PID 1 does (server.h), on a separate
 * vsock port. It is the first process of a pid namespace, or in another container's, if told so;
 * nothing in the container outlives it. It has a mount and cgroup namespace, a host name if it was
 * given one, and the pod's network and IPC. Its root is a tree of the pod's share, with what is
 * mounted there (PROTO_TREE); the host gives it no other tree, and the guest's kernel isolates
 * containers from each other.
 *
 * It lives as long as the session that asked for it: see PROTO_CONTAINER.
 */
#pragma once

#include "agent/server.h"

/* Does nothing unless the configuration is a pod's. */
void containers_init(struct server *srv, const struct config *cfg);
