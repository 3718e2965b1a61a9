/* What there is of a network on this host, as a sandbox's start sees it. Only files and the routing
 * table are looked at: no packet is sent and nothing is waited for. */
#ifndef MSB_LAUNCH_NET_HOST_H
#define MSB_LAUNCH_NET_HOST_H

#include "monitor/net_setup.h"

void net_host_look(struct net_host *ret);
/* The resolvers that this text of a resolv.conf names; without any, the local one, as for the C
 * library. */
void net_host_resolvers(struct net_host *h, const char *text);

#endif
