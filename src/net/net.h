/* The network behind the guest's card: Ethernet, ARP, NDP, IPv4, IPv6, ICMP, UDP and TCP end here
 * and continue as sockets of the host. No root, no TAP, and no guest packet on any wire.
 *
 * TCP is terminated: the guest talks to this stack, which dials the host's side with its own socket
 * and moves bytes between the two, with back-pressure both ways. The guest's connect succeeds only
 * after the host's has. Nothing is dialed before the owner allows it (`verdict`).
 *
 * Runs on the loop's thread, without locks; all sockets are non-blocking. Everything that a guest
 * can make grow is bounded by `struct net_config` and the limits below. Hooks must not call back
 * into the stack except where their comment says so.
 */
#pragma once

#include "net/packet.h"
#include "net/rate.h"
#include "net/sniff.h"
#include "net/socks.h"
#include "util/addr.h"
#include "util/loop.h"
#include "virtio/link.h"

enum {
    NET_TCP_DEFAULT = 256,       /* connections at once (--max-connections) */
    NET_UDP_DEFAULT = 256,       /* flows of UDP and of pings */
    NET_HELD_FLOW_MAX = 1 << 20, /* bytes buffered for one slow peer on the host's side */
    NET_HELD_MAX = 32 << 20,     /* ... and for all of them */
    NET_PUBLISHED_MAX = 256,
};

struct net;

struct net_config {
    uint8_t guest_mac[6], gateway_mac[6];
    struct net_addr guest4, gateway4;
    struct net_addr guest6, gateway6; /* all zero: no IPv6 */
    unsigned max_tcp, max_udp;        /* 0: the defaults */
    struct socks_config proxy;
    struct rate_limits egress, ingress; /* from and to the guest, for flows opened by either side */
    bool copies; /* copy unacknowledged bytes even if the host's kernel could keep them */
};

struct net_flow_id {
    uint8_t proto; /* PROTO_* */
    bool inbound;  /* opened by a peer, through a published port */
    struct net_end guest, peer;
};

enum net_action {
    NET_DENY,  /* a reset or an ICMP error, at once */
    NET_ALLOW, /* dial `to` */
    NET_LOCAL, /* TCP: the host's end is `fd` */
};

struct net_verdict {
    enum net_action action;
    struct net_end to; /* preset to what the guest asked for */
    bool proxied;      /* TCP: ... through the configured proxy */
    int fd;            /* NET_LOCAL: a connected stream socket; belongs to the stack from now on */
    bool sniff;        /* hold what the guest sends until `named` has agreed */
    uint64_t tag;      /* given back with later calls for this flow */
    const char *name;  /* the peer's, if it is known: net_cut gives a copy back */
};

struct net_flow_end {
    uint64_t to_host, to_guest; /* bytes of payload */
    uint64_t ns;                /* how long it lasted */
    const char *how;            /* "closed", "reset by guest", ...: a string literal */
};

/* What happens to a flow whose first bytes were inspected. */
enum net_passage { NET_REFUSE, NET_PASS, NET_DIVERT };

struct net_hooks {
    /* Decides about a new flow, before any socket exists. Required. */
    void (*verdict)(void *ctx, const struct net_flow_id *id, struct net_verdict *v);
    /* Decides about the destination that the first bytes name; name may be "". */
    enum net_passage (*named)(void *ctx, const struct net_flow_id *id, uint64_t tag,
                              enum sniff_kind kind, const char *name);
    /* An allowed flow has ended. */
    void (*ended)(void *ctx, const struct net_flow_id *id, uint64_t tag,
                  const struct net_flow_end *e);
    /* A datagram for the gateway itself. True: it was taken (net_send_udp replies, now or later);
     * false: the guest gets "port unreachable". */
    bool (*datagram)(void *ctx, const struct net_flow_id *id, const void *p, size_t n);
    /* NET_DIVERT: hands the host's connection to another process, which takes the peer's place.
     * Returns a connected stream socket to it (non-blocking; owned by the stack), or -errno. `fd`
     * remains the stack's, which closes it. */
    int (*divert)(void *ctx, const struct net_flow_id *id, const char *name, int fd);
};

struct net_stats {
    uint64_t dropped[PACKET_FAULTS]; /* frames, by fault */
    uint64_t tcp_opened, tcp_refused /* by the limit */, tcp_denied, tcp_failed /* by the host */;
    uint64_t udp_opened, udp_evicted, udp_denied, udp_dropped;
    uint64_t ping_refused; /* the host does not let us */
    uint64_t out_of_order, bogus_acks, resent, memory_full;
    uint64_t udp_limited; /* datagrams dropped because of a limit on bytes or packets */
    unsigned tcp_flows, udp_flows;
    size_t held; /* bytes */
};

int net_new(struct net **ret, struct loop *l, struct link *link, const struct net_config *c,
            const struct net_hooks *hooks, void *ctx);
/* Cuts all flows. n may be NULL. */
void net_free(struct net *n);
const struct net_stats *net_stats(const struct net *n);

/* Connections, or datagrams, that arrive at `fd` (listening, or bound; non-blocking) go to that
 * port of the guest. The descriptor belongs to the stack on success. Returns a handle (the lowest
 * free one, starting at 0), -ENOSPC or -errno. */
int net_publish(struct net *n, uint8_t proto, int fd, uint16_t guest_port);
int net_unpublish(struct net *n, int handle);

/* A datagram to the guest, from the gateway. Lost if the guest has no room. May be called from
 * hooks. */
void net_send_udp(struct net *n, const struct net_end *from, const struct net_end *to,
                  const void *p, size_t len);

/* Resets the flows for which `which` is true; returns how many. name: the one that the first bytes
 * showed (shown), or else that of the verdict, or "". */
unsigned net_cut(struct net *n,
                 bool (*which)(void *arg, const struct net_flow_id *id, uint64_t tag,
                               const char *name, bool shown),
                 void *arg);
