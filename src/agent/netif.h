/* The guest's network interface (addresses, routes, MTU) and its resolvers. */
#pragma once

#include "agent/request.h"

#include <stdbool.h>

/* Bringing it up gives it 127.0.0.1 and ::1; the kernel does that by itself. */
void loopback_up(void);
/* 0, or -errno of the first step that failed; the others are still tried. */
int netif_setup(const struct req_net *n);

/* Whether this resolv.conf lists only resolvers of `n`. */
bool resolv_is_ours(const char *text, const struct req_net *n);
/* Writes /etc/resolv.conf, whatever the image has there; a user's mount is kept. */
int resolv_write(const struct config *cfg);
