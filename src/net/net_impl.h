/* Shared by the files of the stack; no other file includes this. */
#pragma once

#include "net/frag.h"
#include "net/net.h"
#include "util/buf.h"
#include "util/list.h"

enum {
    HASH_BUCKETS = 4096, /* a power of two */
    FRAME_HEAD_MAX = LINK_ETH + 40 + 60,
    RANDOM_POOL = 256,
    WSCALE = 8, /* ours */
    MSS4 = 1500 - 40,
    MSS6 = 1500 - 60,
};

enum tcp_state {
    TCP_DIALING,  /* the guest asked; the host's connect is under way */
    TCP_ANSWERED, /* the host is connected; waiting for the guest's ACK */
    TCP_CALLING,  /* a peer connected to a published port; waiting for the guest's answer */
    TCP_OPEN,
    TCP_RESET, /* the host's side is gone; lives until the guest's reset is sent */
};

/* What to do for a flow once the turn's events have been handled. */
enum {
    DUE_SYN = 1, /* send SYN, or SYN and ACK */
    DUE_ACK = 2,
    DUE_RELEASE = 4, /* the guest has acknowledged: let go of the host's copy */
    DUE_PUMP = 8,    /* look for bytes for the guest */
    DUE_RESEND = 16, /* start over from the first byte that is not acknowledged */
    DUE_PROBE = 32,  /* ask for the guest's window */
};

/* The direction of bytes. */
enum net_dir { DIR_OUT, DIR_IN }; /* from the guest; to it */

/* A flow's place among those that wait for one direction's limits (turns.c). */
struct turn {
    struct node node;
    bool called; /* it may go ahead of the waiting ones, once */
};

struct net_rate {
    struct rate rate;
    struct node waiting; /* of struct turn */
    struct loop_timer timer;
};

/* The part common to TCP, UDP and ping flows. */
struct flow {
    struct net *net;
    struct net_flow_id id;
    struct flow *chain;  /* in its hash bucket */
    struct node all;     /* in n->tcp_all, or n->udp_all in the order of last use */
    struct node work;    /* in n->work, n->blocked, or nowhere */
    struct turn turn[2]; /* by enum net_dir */
    struct loop_src src;
    uint64_t tag;
    uint64_t to_host, to_guest;
    uint64_t began_ns;
    char name[SNIFF_NAME_MAX]; /* the peer's, or "" */
    bool shown;                /* ... in the first bytes */
    bool allowed;              /* `ended` is to be called */
    bool dead;                 /* in n->dead until the turn is over */
};

struct tcp_flow {
    struct flow f;
    enum tcp_state state;
    unsigned due;
    bool local;          /* the host's end is a socket pair */
    struct socks *socks; /* while a proxy is being asked */

    /* From the guest to the host. */
    uint32_t rcv_nxt;   /* next byte from the guest */
    uint32_t rcv_edge;  /* up to where we have allowed it to send */
    uint32_t rcv_acked; /* up to where we have acknowledged */
    struct buf held;    /* taken from the guest, not yet by the host */
    bool guest_fin;     /* the guest has finished (and so has rcv_nxt) */
    bool host_shut;     /* and the host's peer was told */
    bool scaled;        /* windows are scaled */
    bool sniffing;      /* held until the first bytes were inspected */
    bool again;         /* inspecting them is retried at the next tick */

    /* From the host to the guest. */
    uint32_t snd_una, snd_nxt, snd_max; /* acknowledged; next to send; end of all ever sent */
    uint32_t released;                  /* released from the host's socket up to here */
    uint32_t fin_seq;                   /* of our FIN, when host_eof */
    uint32_t snd_wnd;
    uint16_t mss;
    uint8_t snd_scale;
    uint8_t dup_acks;
    bool peek;     /* unacknowledged bytes stay in the host's socket; else in `kept` */
    bool readable; /* the host's socket may have more */
    bool hangup;   /* ... and has hung up */
    bool host_eof; /* its end was seen, at fin_seq */
    struct buf kept;

    /* Waiting. */
    uint64_t since_ns; /* of the last progress, while something is in flight */
    unsigned tries;
};

enum udp_kind { UDP_OUT, UDP_IN, PING_OUT };

struct udp_flow {
    struct flow f;
    enum udp_kind kind;
    struct published *pub; /* UDP_IN: whose socket it uses */
    struct net_end real;   /* ... and its real peer, which the guest may see as the gateway */
    uint64_t used_ns;
    bool answered;
};

struct published {
    struct net *net;
    struct loop_src src; /* fd < 0: free */
    uint8_t proto;
    uint16_t guest_port;
};

struct net {
    struct loop *loop;
    struct link *link;
    struct net_config cfg;
    const struct net_hooks *hooks;
    void *ctx;
    struct net_stats stats;
    bool has6, peek_off;
    bool working;
    bool slow; /* the tick is slow: nothing is in flight */

    uint64_t key[2]; /* of the hash */
    struct flow *hash[HASH_BUCKETS];
    struct node tcp_all, udp_all;
    struct node work;    /* flows with something to do */
    struct node blocked; /* flows that wait for room at the guest */
    struct flow *dead;
    struct loop_timer work_timer, tick_timer;
    struct net_rate rate[2]; /* by enum net_dir */

    uint8_t random[RANDOM_POOL];
    unsigned random_left;
    uint16_t ip_id, next_port;

    struct frag_table *frags;
    struct packet packet;
    uint8_t scratch[65536];
    struct published published[NET_PUBLISHED_MAX];
};

static inline struct tcp_flow *tcp_of(struct flow *f)
{
    return (struct tcp_flow *)(void *)f; /* first member */
}
static inline struct udp_flow *udp_of(struct flow *f)
{
    return (struct udp_flow *)(void *)f;
}

static inline bool net_link_local(const struct net_addr *a)
{
    return a->b[0] == 0xfe && (a->b[1] & 0xc0) == 0x80;
}

/* --- net.c: flows in general ------------------------------------------------------------------ */

struct flow *flow_find(struct net *n, const struct net_flow_id *id);
void flow_insert(struct flow *f, struct node *list);
/* Takes over what the verdict says about an allowed flow. */
void flow_allow(struct flow *f, const struct net_verdict *v);
/* Removes it from all lists and closes its descriptor; it is freed at the end of the turn. */
void flow_remove(struct flow *f, const char *how);
/* Tells the owner, once, that an allowed flow has ended. */
void flow_tell_end(struct flow *f, const char *how);
/* Puts it on the work list and makes sure that the work is done this turn. */
void flow_work(struct flow *f);
void net_random(struct net *n, void *p, size_t len);
/* Something is in flight now. */
void net_tick_soon(struct net *n);
/* A flow from that peer through a published port, as the guest sees it. */
struct net_flow_id net_inbound_id(const struct published *pub, const struct net_end *peer);

/* --- turns.c: limits ---------------------------------------------------------------------------
 */

void turns_init(struct net *n);
void turns_stop(struct net *n);
/* How many of `want` (>= 1) bytes the flow may move now, in packets of `packet` bytes. 0: it has to
 * wait, and is called (tcp_drain, or flow_work) when its turn comes. */
size_t flow_grant(struct flow *f, enum net_dir dir, size_t want, size_t packet);
void flow_charge(struct flow *f, enum net_dir dir, size_t bytes, size_t packet);

/* --- out.c: frames to the guest --------------------------------------------------------------- */

/* Writes Ethernet and IP headers for l4_len bytes of transport; returns their length. */
size_t out_headers(struct net *n, uint8_t *h, const struct net_addr *src,
                   const struct net_addr *dst, uint8_t proto, size_t l4_len);
/* Sends one frame from flat bytes; false if there is no room. */
bool out_frame(struct net *n, const uint8_t *head, size_t head_len, const void *p, size_t len);
/* An ICMP or ICMPv6 message to the guest, checksum filled in here. */
bool out_icmp(struct net *n, const struct net_addr *src, const struct net_addr *dst,
              const uint8_t *msg, size_t len);

enum unreachable { UNREACH_NET, UNREACH_HOST, UNREACH_PORT, UNREACH_ADMIN };
/* Sends "destination unreachable" about what the guest sent; seq is the TCP segment's, which a
 * careful guest checks against what it has sent. */
void out_unreachable(struct net *n, const struct net_flow_id *id, uint32_t seq,
                     enum unreachable why);

/* --- arp.c, icmp.c, udp.c, tcp*.c --------------------------------------------------------------
 */

void arp_input(struct net *n, const struct packet *p);
void icmp_input(struct net *n, const struct packet *p);
void ping_readable(struct udp_flow *u);

void udp_input(struct net *n, const struct packet *p);
void udp_work(struct udp_flow *u);
void udp_tick(struct net *n, uint64_t now);
void udp_published(struct published *pub);
/* Whether the rate limit lets a datagram of `len` bytes pass, which is then charged; if not, it is
 * dropped. */
bool udp_passes(struct udp_flow *u, enum net_dir dir, size_t len);
/* Asks the policy. A refusal is answered (ICMP) and counted here. */
bool udp_allowed(struct net *n, const struct net_flow_id *id, struct net_verdict *v);
/* A non-blocking datagram socket connected to that end, or -errno. */
int udp_socket(const struct net_end *to, int proto);
/* The flow that a verdict allowed; takes fd in any case. NULL: out of memory or descriptors. */
struct udp_flow *udp_flow_new(struct net *n, const struct net_flow_id *id, enum udp_kind kind,
                              int fd, const struct net_verdict *v);
bool to_gateway(const struct net *n, const struct packet *p);
/* Reports the host's error on a flow's socket to the guest; the flow may be gone afterwards. */
void udp_error(struct udp_flow *u, int err);

void tcp_input(struct net *n, const struct packet *p);
/* Does the pending work. True: there is more, for the next round. */
bool tcp_work(struct tcp_flow *t);
void tcp_tick(struct net *n, uint64_t now);
/* Whether something depends on the tick to make progress. */
bool tcp_needs_tick(const struct tcp_flow *t);
/* Resets both sides. */
void tcp_abort(struct tcp_flow *t, const char *how);
void tcp_published(struct published *pub);

/* tcp_proxy.c: asking a proxy for a connection, in TCP_DIALING. */
bool tcp_proxy_begin(struct tcp_flow *t, const struct net_end *to);
/* Handles an event on the socket, which is connected to the proxy. */
void tcp_proxy_step(struct tcp_flow *t);
/* What an error on the socket means. */
const char *tcp_proxy_lost(const struct tcp_flow *t);
/* Ends a handshake that takes too long. */
void tcp_proxy_tick(struct tcp_flow *t, uint64_t now);
void tcp_proxy_end(struct tcp_flow *t);

/* tcp_host.c: the host's side */
/* The host's connect has succeeded or failed: tells the guest. */
void tcp_connected(struct tcp_flow *t);
void tcp_failed(struct tcp_flow *t, int err, const char *how);
void tcp_dial(struct tcp_flow *t, const struct net_verdict *v);
int tcp_watch(struct tcp_flow *t, int fd);
void tcp_accept_data(struct tcp_flow *t, const struct packet *p, size_t off, size_t len);
void tcp_drain(struct tcp_flow *t);
/* Inspects the first bytes, which decide whether they may pass. */
void tcp_look(struct tcp_flow *t);
void tcp_shut(struct tcp_flow *t);
ssize_t tcp_fetch(struct tcp_flow *t, struct iovec *iov, unsigned n, size_t want);
void tcp_release(struct tcp_flow *t);
void tcp_rewind(struct tcp_flow *t);
/* How much more may be sent to the guest before it acknowledges. */
size_t tcp_kept_room(const struct tcp_flow *t);

/* tcp_out.c: segments to the guest */
bool tcp_send(struct tcp_flow *t, uint8_t flags, uint32_t seq);
void tcp_send_reset(struct net *n, const struct packet *p);
enum pump { PUMP_IDLE, PUMP_MORE, PUMP_BLOCKED };
enum pump tcp_pump(struct tcp_flow *t);

static inline bool seq_lt(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}
