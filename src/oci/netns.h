/* The network of a container that has its own network namespace.
 *
 * What an engine has put there (addresses, routes, sums of rules on the node) is for the guest: a TAP
 * device beside the interface takes all frames that arrive at it, and everything that the guest sends
 * leaves through it. The guest has the interface's hardware address, MTU, addresses and routes, so
 * that nobody can tell the difference, and every port is its own.
 *
 *     node ─── eth0 ⇄ (tc: redirect) ⇄ msb0 ─── virtio-net: the guest's eth0
 *
 * An interface that a process of the same user serves (slirp4netns) has published ports connected to
 * from inside the namespace: these connections reach the guest, too.
 *
 * There is one guest to an interface, and one interface: the first Ethernet one that is up. The TAP
 * device goes with its guest; the redirection at the interface is removed by netns_release().
 */
#pragma once

#include "monitor/params.h"
#include "util/buf.h"
#include "util/err.h"

struct netns {
    struct net_tap tap;  /* fd -1: there is no interface to connect to */
    struct buf messages; /* of tap */
};

/* In the network namespace of the calling process. */
int netns_connect(struct netns *ret, struct err *e);
void netns_free(struct netns *n);

/* Gives the interface in the namespace at `path` back to it. That may be gone. */
void netns_release(const char *path);
