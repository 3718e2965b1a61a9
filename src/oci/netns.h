/* The network of a container that has its own network namespace.
 *
 * What an engine has set up there (addresses, routes, rules on the node) is for the guest: a TAP
 * device beside the interface takes all frames that arrive at it, and everything that the guest
 * sends leaves through it. The guest has the interface's hardware address, MTU, addresses and
 * routes, so that the difference is invisible from outside, and all ports are the guest's.
 *
 *     node ─── eth0 ⇄ (tc: redirect) ⇄ msb0 ─── virtio-net: the guest's eth0
 *
 * Where a process of the same user serves the interface (slirp4netns), connections to published
 * ports are made from inside the namespace; they reach the guest, too.
 *
 * Each guest has one interface, the first Ethernet one that is up, to itself. The TAP device
 * disappears with its guest; netns_release() removes the redirection at the interface.
 */
#pragma once

#include "monitor/params.h"
#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>

struct netns {
    struct net_tap tap;  /* fd -1: there is no interface to connect to */
    struct buf messages; /* of tap */
};

/* Works in the calling process's network namespace. */
int netns_connect(struct netns *ret, struct err *e);
void netns_free(struct netns *n);

/* What netns_release() needs; NULL: there is none at that path, or out of memory. */
json_t *netns_describe(const char *path);
/* Gives the interface back to the namespace, unless it is gone: another one may have its path, which
 * can be that of a process. (Before Linux 5.14, one that also has its inode number is taken for it.) */
void netns_release(const json_t *netns);
