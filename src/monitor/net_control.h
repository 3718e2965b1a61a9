/* The network of a running sandbox: its decisions go to net.log, and clients' requests (proto.h,
 * NET_*, PORT_* and SECRETS) are answered with the help of the network's thread.
 *
 * Only the user can connect to agent.sock; what clients send is checked nevertheless. A change is
 * in force by the time its client is told so. Making it survive a restart is up to the client,
 * since the monitor cannot write the spec.
 */
#pragma once

#include "monitor/ceiling.h"
#include "monitor/net_log.h"
#include "monitor/net_setup.h"
#include "proto/proto.h"

struct net_control {
    struct net_thread *net;        /* NULL: the sandbox has no network */
    const struct ceiling *ceiling; /* the limits on requests; NULL: none */
    struct net_log log;
    int run_fd; /* holds ports.json */
    struct spec_port port[SPEC_PUBLISH_MAX];
    int handle[SPEC_PUBLISH_MAX]; /* of net_publish() */
    size_t n_ports;
    struct strlist secrets; /* names of those that are bound to hosts */
    enum spec_violation on_violation;
    void (*failed)(void *ctx, int code);
    void (*violated)(void *ctx, const char *host); /* VIOLATION_TERMINATE; NULL: nothing to do */
    void *ctx;
};

/* Creates the network of a spec that has one (net_setup.h); its thread does not run yet. `failed`
 * is called when its loop fails. */
int net_control_setup(struct net_control *c, const struct spec_net *n, const struct net_host *host,
                      const struct net_ports *ports, unsigned max_connections, struct loop *loop,
                      int run_fd, int logs_fd, void (*failed)(void *ctx, int code), void *ctx,
                      struct err *e);
/* Puts the reply to a request into `out`; false when the request is not about the network. See
 * relay_events. */
bool net_control_request(struct net_control *c, const struct proto_frame *f, int *fd,
                         struct buf *out);
/* The JSON in a request, and the reply that refuses it. */
json_t *net_control_json(const struct proto_frame *f);
void net_control_refuse(struct buf *out, int code, const char *text);
/* Takes away from the network whatever exceeds the ceiling, after that was lowered. */
int net_control_conform(struct net_control *c, struct err *e);
/* Writes the rest of the log. */
void net_control_close(struct net_control *c);
