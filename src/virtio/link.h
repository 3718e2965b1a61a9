/* A network card and what is behind it: how frames pass between them.
 *
 * The card (virtio/net.c, or a TAP device in tests) gives frames to its user as scattered buffers
 * with the offload header that came with them; the user sends by reserving room in the guest's own
 * receive buffers, filling it, and committing. So payload is copied once, between a host socket and
 * guest memory.
 *
 * Rules: everything happens on one thread. Buffers given to `input`, and room got from `reserve`,
 * are guest memory: good until that call, or the matching commit, returns. Their content may change
 * at any time, so what is to be checked is copied first. There is at most one reservation at a
 * time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    LINK_ETH = 14,               /* bytes of an Ethernet header */
    LINK_FRAME_MAX = 14 + 65535, /* of a frame with segmentation offload */
    LINK_IOV_MAX = 256,
};

enum link_gso { LINK_GSO_NONE, LINK_GSO_TCP4, LINK_GSO_TCP6 };

/* What the sender of a frame left for the receiver to do. */
struct link_offload {
    bool csum; /* the checksum at csum_start + csum_offset covers the pseudo header alone */
    uint16_t csum_start, csum_offset;
    enum link_gso gso;
    uint16_t gso_size; /* payload bytes in one segment on a real wire */
    uint16_t hdr_len;  /* bytes before the payload */
};

/* What the receiver at the guest's end can handle. */
enum {
    LINK_CSUM = 1,     /* frames with an unfinished checksum */
    LINK_TSO4 = 2,     /* large TCP segments */
    LINK_TSO6 = 4,     /* ... over IPv6 */
    LINK_ANY_SIZE = 8, /* frames beyond the MTU that have a reason to be so large */
};

struct link;

struct link_ops {
    /* Gets room for a frame: at least `min` bytes, at most `want`. Returns how many there are, and
     * where, or 0: the user's `room` will be called when there is more. */
    size_t (*reserve)(struct link *l, size_t min, size_t want, const struct iovec **iov,
                      unsigned *n);
    /* Sends the first len bytes of what was reserved; 0 gives all of it back. */
    void (*commit)(struct link *l, const struct link_offload *o, size_t len);
    /* Notifies the guest of what was committed. */
    void (*flush)(struct link *l);
};

struct link_user {
    void (*input)(void *ctx, const struct link_offload *o, const struct iovec *iov, unsigned n,
                  size_t len);
    void (*input_end)(void *ctx); /* no more frames for now */
    void (*room)(void *ctx);      /* after a reservation that failed */
    void (*reset)(void *ctx);     /* the guest's driver is gone, or a new one has started */
};

/* Embedded in the card. The user sets `user` and `ctx`. */
struct link {
    const struct link_ops *ops;
    unsigned caps; /* LINK_*: may change when the guest's driver starts */
    const struct link_user *user;
    void *ctx;
};
