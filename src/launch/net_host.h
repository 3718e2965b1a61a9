/* This host's network, as a sandbox finds it when it starts. Only files and the routing table are
 * read: no packet is sent, and nothing blocks. */
#pragma once

#include "monitor/params.h"

void net_host_look(struct net_host *ret);
/* The resolvers named in the text of a resolv.conf; if there are none, the local one, as in the C
 * library. */
void net_host_resolvers(struct net_host *h, const char *text);
