/* The network of a sandbox while it runs: its decisions go to net.log, and requests of clients
 * (proto.h, NET_* and PORT_*) are answered, by way of the network's own thread.
 *
 * A client may be anyone who may connect to agent.sock, which is the user himself; its words are
 * checked all the same. What has been changed here is in force when the client hears of it; that a
 * later start finds it, too, is the client's business, who alone can write the spec.
 */
#ifndef MSB_MONITOR_NET_CONTROL_H
#define MSB_MONITOR_NET_CONTROL_H

#include "monitor/net_log.h"
#include "monitor/net_setup.h"
#include "proto/proto.h"

struct net_control {
    struct net_thread *net; /* NULL: the sandbox has no network */
    struct net_log log;
    int run_fd; /* where ports.json is */
    struct spec_port port[SPEC_PUBLISH_MAX];
    int handle[SPEC_PUBLISH_MAX]; /* of net_publish() */
    size_t n_ports;
    void (*failed)(void *ctx, int code);
    void *ctx;
};

/* Makes the network of a spec that has one (net_setup.h); the thread does not run yet. `failed`:
 * its loop did. */
int net_control_setup(struct net_control *c, const struct spec_net *n, const struct net_host *host,
                      const struct net_ports *ports, unsigned max_connections, struct loop *loop,
                      int run_fd, int logs_fd, void (*failed)(void *ctx, int code), void *ctx,
                      struct err *e);
/* The answer to a request is in `out`; false when it is none of ours. See relay_events. */
bool net_control_request(struct net_control *c, const struct proto_frame *f, int *fd,
                         struct buf *out);
/* The end: writes what is left of the log. */
void net_control_close(struct net_control *c);

#endif
