/* From a spec to a network that is ready to run: addresses, policy, name servers, ports. */
#ifndef MSB_MONITOR_NET_SETUP_H
#define MSB_MONITOR_NET_SETUP_H

#include "monitor/net_thread.h"
#include "net/dns.h"
#include "proto/proto.h"

/* Every sandbox has the same addresses, since none shares a wire with another. */
#define NET_GUEST4 "172.27.255.254"
#define NET_GATEWAY4 "172.27.255.253"
#define NET_GUEST6 "fd42:6d73:62::2"
#define NET_GATEWAY6 "fd42:6d73:62::1"
enum { NET_BITS4 = 30, NET_BITS6 = 64 };

/* What there is of a network on this host (launch/net_host.h fills it in). */
struct net_host {
    struct net_end resolver[DNS_UPSTREAMS_MAX]; /* of /etc/resolv.conf */
    unsigned n_resolvers;
    bool ipv6;                 /* there is a route to global addresses */
    struct socks_config proxy; /* what the spec asks for, with its password */
};

/* What is published: the descriptors belong to the stack once net_setup has succeeded. */
struct net_ports {
    struct spec_port port[SPEC_PUBLISH_MAX]; /* as they were bound */
    int fd[SPEC_PUBLISH_MAX];
    size_t n;
};

/* What the host's limit on open files leaves of the spec's connections, each of which is one; so
 * many others the monitor may have. */
unsigned net_max_connections(const struct spec_net *n, uint64_t others);

/* max_connections: see above. */
int net_setup(struct net_thread **ret, const struct spec_net *n, const struct net_host *host,
              const struct net_ports *ports, unsigned max_connections, struct loop *main_loop,
              const struct net_thread_events *ev, void *ctx, struct err *e);

/* The part of CONFIG from which the agent sets the guest's end up. */
void net_put_config(struct proto_writer *w, const struct spec_net *n, const struct net_host *host);

#endif
