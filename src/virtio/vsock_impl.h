/* Shared by vsock.c (the device: packets) and vsock_stream.c (the streams: what owners call).
 * No other file includes this. */
#pragma once

#include <linux/virtio_vsock.h>

#include "util/buf.h"
#include "util/list.h"
#include "util/loop.h"
#include "virtio/vsock.h"

enum { Q_RX, Q_TX, Q_EVENT, N_QUEUES };

enum {
    HDR_LEN = 44,
    PACKET_MAX = 64 * 1024, /* payload bytes in one packet to the guest */
    HASH_SIZE = 2048,
    REPLIES_MAX = 256, /* resets for packets that belong to no stream */
};
_Static_assert(sizeof(struct virtio_vsock_hdr) == HDR_LEN, "header layout");

enum stream_state {
    STREAM_FREE,
    STREAM_REQUESTED, /* our request is out, or about to go out */
    STREAM_OPEN,
    STREAM_LINGER, /* the owner has closed; waiting for the guest's reset */
    STREAM_RESET,  /* ownerless; lives until its reset is sent */
    STREAM_DEAD,   /* out of all lists; its slot is free once no call is in progress */
};

/* Control packets to send, in the order in which they go out. */
enum {
    DUE_REQUEST = 1,
    DUE_RESPONSE = 2,
    DUE_CREDIT = 4,
    DUE_SHUTDOWN = 8,
    DUE_RST = 16,
};

struct vsock_stream {
    struct vsock *v;
    struct vsock_stream *chain; /* next in the hash bucket, or in the list of free or dead slots */
    struct node pending;        /* in v->pending while due is not 0 */
    struct node waiting;        /* in v->waiting while it wants receive buffers, or in v->linger */
    const struct vsock_stream_ops *ops;
    void *ctx;
    uint32_t guest_port, host_port;
    enum stream_state state;
    unsigned due;
    unsigned shut_peer;  /* VSOCK_SHUT_* the guest has sent */
    unsigned shut_local; /* and we have */
    bool by_guest;       /* opened by the guest: counts toward its share */
    bool want_write;     /* a send was short */
    bool in_data;        /* inside ops->data */
    bool resumed;        /* vsock_resume() was called there */
    bool told_shutdown;  /* peer_shutdown was called */
    bool peer_reset;     /* the guest is done with it: no reset to send */
    /* Counters of the wire; all of them wrap. */
    uint32_t peer_alloc, peer_fwd, tx_cnt; /* towards the guest */
    uint32_t rx_cnt, fwd_cnt, fwd_told;    /* from the guest */
    struct buf held;                       /* received, not yet taken */
};

struct vsock_listener {
    uint32_t port;
    vsock_accept_fn accept; /* NULL: free */
    void *ctx;
};

struct vsock_reply {
    uint32_t guest_port, host_port;
    uint16_t type;
};

struct vsock {
    struct virtio_dev dev;
    struct virtio_vsock_config config;
    uint64_t guest_cid;
    uint32_t seed;      /* of the hash */
    uint32_t next_port; /* for vsock_connect */
    struct vsock_stats stats;
    unsigned depth; /* calls in progress; slots are reused at 0 only */
    size_t held;    /* bytes in all streams' `held` */
    bool tx_paused; /* no room for the replies that the guest's packets may cause */
    struct node pending, waiting, linger;
    unsigned n_waiting, n_by_guest;
    struct vsock_stream *free_slots, *dead;
    unsigned slots_used; /* slots from here on were never used */
    struct vsock_reply reply[REPLIES_MAX];
    unsigned reply_head, n_replies;
    struct vsock_listener listener[VSOCK_LISTENERS_MAX];
    struct vsock_stream *hash[HASH_SIZE];
    struct virtq_chain rx, tx;
    struct vsock_stream slot[VSOCK_STREAMS_MAX];
};

/* vsock_stream.c */
void vsock_enter(struct vsock *v);
void vsock_leave(struct vsock *v);
struct vsock_stream *stream_find(struct vsock *v, uint32_t guest_port, uint32_t host_port);
struct vsock_stream *stream_new(struct vsock *v, uint32_t guest_port, uint32_t host_port,
                                bool by_guest);
bool stream_alive(const struct vsock_stream *s); /* it has an owner */
void stream_due(struct vsock_stream *s, unsigned due);
/* The owner, if there is one, gets closed(reset=true); the guest is sent a reset. */
void stream_reset(struct vsock_stream *s);
/* The guest broke a rule: resets the stream, and counts it. */
void stream_violation(struct vsock_stream *s);
/* The guest has reset it: calls closed() now, or after its data if it had closed cleanly before. */
void stream_peer_reset(struct vsock_stream *s);
/* Payload from the guest. */
void stream_receive(struct vsock_stream *s, const struct iovec *iov, unsigned n);
/* After the guest's shutdown, or when its last bytes were taken. */
void stream_check_end(struct vsock_stream *s);
/* The guest's credit grew: wake a sender. */
void stream_check_writable(struct vsock_stream *s);
/* Sends control packets while there are receive buffers. True: all of them went out. */
bool vsock_flush(struct vsock *v);
/* Lets streams that wait for receive buffers send. */
void vsock_wake_waiting(struct vsock *v);
/* Ends all streams without telling the guest. */
void vsock_drop_all(struct vsock *v);
