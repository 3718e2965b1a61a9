/* The guest's network interface: addresses, routes, MTU. And who answers for names. */
#ifndef MSB_AGENT_NETIF_H
#define MSB_AGENT_NETIF_H

#include "agent/request.h"

#include <stdbool.h>

/* Bringing it up gives it 127.0.0.1 and ::1; the kernel does that by itself. */
void loopback_up(void);
/* 0 or -errno: of the first step that failed, after which the others were tried. */
int netif_setup(const struct req_net *n);

/* Whether this text of a resolv.conf asks the resolvers of `n` and no others. */
bool resolv_is_ours(const char *text, const struct req_net *n);
/* /etc/resolv.conf, whatever the image has in its place; a mount of the user's stays. */
int resolv_write(const struct config *cfg);

#endif
