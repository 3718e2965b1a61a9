/* Messages between the monitor and the interceptor: SOCK_SEQPACKET, one message per packet. Neither
 * trusts the other: the monitor, because it serves a hostile guest; the interceptor, because it
 * reads what that guest and its servers say.
 *
 *     monitor ── flow: the guest's end, the connection to the server ──▶ interceptor
 *     monitor ── names of secrets, then a change: a client's socket ──▶ interceptor: the configuration
 *                comes over that, and may have secrets of these names alone
 *     monitor ── names of secrets, then a cut ──▶ interceptor: forgets all others
 *     monitor ◀── report: a line for net.log ── interceptor
 */
#pragma once

#include "intercept/subst.h"
#include "net/net.h"

enum link_kind { LINK_FLOW = 1, LINK_CHANGE, LINK_NAME, LINK_CUT };
enum { LINK_PORT_PLAIN = 80 }; /* a flow to this port has no TLS in it */

struct link_flow {
    uint32_t kind; /* enum link_kind */
    struct net_flow_id id;
    char host
        [SUBST_HOST_MAX]; /* the name that the flow has shown, lower case; of LINK_NAME, a secret */
};

enum link_report_kind {
    LINK_VIOLATION = 1, /* a placeholder where it does not belong; nothing was sent */
    LINK_REFUSED,       /* not sent for another reason, or the server is not trusted */
    LINK_UNTRUSTED,     /* the guest's client does not accept our certificate */
};

struct link_report {
    uint32_t kind; /* enum link_report_kind */
    struct net_flow_id id;
    char host[SUBST_HOST_MAX];
    char text[SUBST_TEXT_MAX];
};

/* Sends a message with up to two descriptors (-1: none), which stay the caller's. 0 or -errno. */
int link_send(int sock, const void *p, size_t n, int fd1, int fd2);
/* Receives a message of exactly n bytes, and up to two descriptors. 1: done; 0: there is none yet;
 * -EPIPE: the other end is gone; -EPROTO: something else arrived, and was dropped. Does not
 * block. */
int link_recv(int sock, void *p, size_t n, int fds[2]);
