/* Turns a spec into a network that is ready to run: addresses, policy, name servers, ports. */
#pragma once

#include "monitor/net_thread.h"
#include "monitor/params.h"
#include "proto/proto.h"

/* All sandboxes have the same addresses, unless pools were requested: no two share a link. */
#define NET_GUEST4 "172.27.255.254"
#define NET_GATEWAY4 "172.27.255.253"
#define NET_GUEST6 "fd42:6d73:62::2"
#define NET_GATEWAY6 "fd42:6d73:62::1"

/* How many of the spec's connections fit under the host's limit on open files: each takes one, and
 * the monitor also needs `others`. */
unsigned net_max_connections(const struct spec_net *n, uint64_t others);

/* max_connections: of net_max_connections(). */
int net_setup(struct net_thread **ret, const struct spec_net *n, const struct net_host *host,
              const struct net_ports *ports, unsigned max_connections, struct loop *main_loop,
              const struct net_thread_events *ev, void *ctx, struct err *e);

/* The hosts to intercept; malloc'd. */
int net_hosts(const struct spec_bound *b, struct gate_host **ret, size_t *n, struct err *e);

/* Writes the part of CONFIG from which the agent sets up the guest's end. */
void net_put_config(struct proto_writer *w, const struct spec_net *n, const struct net_host *host);
/* The same for a network that msb does not provide. */
void net_put_tap(struct proto_writer *w, const struct net_tap *tap);
