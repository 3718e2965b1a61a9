/* Queries about the network of a running sandbox, and changes to it: the protocol's NET_*, PORT_*
 * and SECRETS, on the client's side. The replies come from a monitor that may have been
 * compromised: texts are truncated and made safe to show.
 *
 * dirfd is the sandbox's directory. Failures to reach the monitor are those of client/request.h. A
 * refusal is the monitor's error, or EPROTO, with its text in `e`.
 */
#pragma once

#include "net/explain.h"
#include "spec/net.h"
#include "util/err.h"

int net_request_explain(int dirfd, const struct explain_target *t, struct explain_answer *ret,
                        struct err *e);
/* Puts the policy of `n` in force. */
int net_request_set(int dirfd, const struct spec_net *n, bool drop, unsigned *cut, struct err *e);

struct net_in_force {
    struct strlist rules;
    bool default_egress, default_ingress;
    char counters[1024]; /* JSON */
};
/* Adds limits (policy_limits) to those that its monitor enforces. */
int net_request_limit(int dirfd, const json_t *limits, struct err *e);
int net_request_show(int dirfd, struct net_in_force *ret, struct err *e);
void net_in_force_free(struct net_in_force *n);

/* fd: bound and, for TCP, listening; it stays the caller's. */
int net_request_publish(int dirfd, const struct spec_port *p, int fd, struct err *e);
int net_request_unpublish(int dirfd, const struct spec_port *p, struct err *e);

/* Bound secrets. With a descriptor: the interceptor gets it, and receives its new configuration
 * over it (intercept/link.h). With a network: new flows to its hosts are intercepted, and new
 * commands get its placeholders in place of those in `old`. With neither: only checks that there is
 * an interceptor; ENOTCONN if not. */
int net_request_secrets(int dirfd, int fd, const struct spec_net *now, const struct spec_net *old,
                        struct err *e);
