/* Invariants, each with a test that fails without it:
 *
 *  1. The offload header is copied before use; what the user gets is checked: checksums lie
 *     inside the frame, segmentation was negotiated and has a segment size.
 *  2. A frame is at least an Ethernet header and at most an MTU long, or 64 KiB if segmented.
 *  3. A frame to the guest is shown whole: all of its buffers at once, the header first.
 *  4. Buffers that were reserved and not used go back in order; the driver never notices.
 *  5. Each kick handles a bounded number of frames and bytes.
 */
#include "virtio/net.h"

#include <assert.h>
#include <errno.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/iov.h"
#include "util/loop.h"

enum { Q_RX, Q_TX, N_QUEUES };
enum {
    HDR_LEN = 12,
    FRAMES_PER_KICK = 128,
    BYTES_PER_KICK = 2 << 20,
};
_Static_assert(sizeof(struct virtio_net_hdr_v1) == HDR_LEN, "header layout");

#define BIT(n) (1ULL << (n))
/* No STATUS: without it, drivers assume at once that the link is up. */
#define NET_FEATURES                                                                            \
    (BIT(VIRTIO_NET_F_MAC) | BIT(VIRTIO_NET_F_MTU) | BIT(VIRTIO_NET_F_CSUM) |                   \
     BIT(VIRTIO_NET_F_GUEST_CSUM) | BIT(VIRTIO_NET_F_HOST_TSO4) | BIT(VIRTIO_NET_F_HOST_TSO6) | \
     BIT(VIRTIO_NET_F_GUEST_TSO4) | BIT(VIRTIO_NET_F_GUEST_TSO6) | BIT(VIRTIO_NET_F_MRG_RXBUF))

/* A receive buffer in a reservation. */
struct taken {
    uint16_t head;
    size_t len;
};

struct net_dev {
    struct virtio_dev dev;
    struct link link;
    struct virtio_net_config config;
    struct virtio_net_stats stats;
    bool starved; /* a reservation failed: the user waits for room */
    bool started; /* the user knows what this driver negotiated */

    unsigned n_taken, n_iov, n_room;
    struct taken taken[VIRTQ_SIZE_MAX];
    struct iovec iov[LINK_IOV_MAX + VIRTQ_CHAIN_MAX]; /* all of what was taken */
    struct iovec room[LINK_IOV_MAX];                  /* without the header */
    struct virtq_chain chain;                         /* of the receive queue */
    struct virtq_chain tx;
};

static bool negotiated(const struct net_dev *n, unsigned bit)
{
    return virtio_dev_has(&n->dev, bit);
}

/* --- from the guest -------------------------------------------------------------------------- */

static bool offload_ok(const struct net_dev *n, const struct virtio_net_hdr_v1 *h, size_t len,
                       struct link_offload *o)
{
    *o = (struct link_offload){0};
    if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        if (!negotiated(n, VIRTIO_NET_F_CSUM) || h->csum_start < LINK_ETH ||
            (size_t)h->csum_start + h->csum_offset + 2 > len)
            return false;
        o->csum = true;
        o->csum_start = h->csum_start;
        o->csum_offset = h->csum_offset;
    }
    switch (h->gso_type) {
    case VIRTIO_NET_HDR_GSO_NONE:
        return true;
    case VIRTIO_NET_HDR_GSO_TCPV4:
        o->gso = LINK_GSO_TCP4;
        break;
    case VIRTIO_NET_HDR_GSO_TCPV6:
        o->gso = LINK_GSO_TCP6;
        break;
    default:
        return false;
    }
    o->gso_size = h->gso_size;
    unsigned bit = o->gso == LINK_GSO_TCP4 ? VIRTIO_NET_F_HOST_TSO4 : VIRTIO_NET_F_HOST_TSO6;
    return negotiated(n, bit) && h->gso_size != 0 && o->csum;
}

/* The frame in n->tx; returns its length. */
static size_t serve_tx(struct net_dev *n)
{
    struct virtio_net_hdr_v1 h;
    struct iovec iov[VIRTQ_CHAIN_MAX];
    struct link_offload o;
    size_t len = n->tx.out_len - HDR_LEN;

    (void)virtq_chain_read(&n->tx, 0, &h, HDR_LEN);
    bool large = h.gso_type != VIRTIO_NET_HDR_GSO_NONE;
    if (len < LINK_ETH || len > (size_t)(large ? LINK_FRAME_MAX : LINK_ETH + n->config.mtu)) {
        n->stats.bad_size++;
        return 0;
    }
    if (!offload_ok(n, &h, len, &o)) {
        n->stats.bad_header++;
        return 0;
    }
    n->stats.tx_frames++;
    n->stats.tx_bytes += len;
    n->stats.tx_large += large;
    unsigned k = iov_slice(iov, VIRTQ_CHAIN_MAX, virtq_out(&n->tx), n->tx.n_out, HDR_LEN, len);
    n->link.user->input(n->link.ctx, &o, iov, k, len);
    return len;
}

static int64_t tx_kick(struct net_dev *n)
{
    struct virtio_dev *d = &n->dev;
    struct virtq *q = &d->vq[Q_TX];
    unsigned frames = 0;
    size_t bytes = 0;
    int r = 0;
    do {
        virtq_notify_off(q);
        while (frames < FRAMES_PER_KICK && bytes < BYTES_PER_KICK &&
               (r = virtio_dev_pop(d, Q_TX, &n->tx)) > 0) {
            if (n->tx.n_in > 0 || n->tx.out_len < HDR_LEN) {
                virtio_dev_break(d, "net: frame without a header");
                return VIRTIO_IDLE;
            }
            frames++;
            bytes += serve_tx(n);
            virtq_push(q, &n->tx, 0);
        }
    } while (r == 0 && virtq_notify_on(q));
    n->link.user->input_end(n->link.ctx);
    virtio_dev_interrupt(d, Q_TX);
    return r > 0 ? 0 : VIRTIO_IDLE;
}

/* --- to the guest ---------------------------------------------------------------------------- */

/* Adds one receive buffer to the reservation; 0 if there is none. */
static size_t take_buffer(struct net_dev *n)
{
    struct virtq *q = &n->dev.vq[Q_RX];
    if (!virtq_pending(q) && !virtq_notify_on(q))
        return 0;
    if (virtio_dev_pop(&n->dev, Q_RX, &n->chain) <= 0)
        return 0;
    if (n->chain.n_out > 0) {
        virtio_dev_break(&n->dev, "net: receive buffer is not writable");
        return 0;
    }
    n->taken[n->n_taken++] = (struct taken){.head = n->chain.head, .len = n->chain.in_len};
    memcpy(n->iov + n->n_iov, virtq_in(&n->chain), n->chain.n_in * sizeof(n->iov[0]));
    n->n_iov += n->chain.n_in;
    return n->chain.in_len;
}

static void untake(struct net_dev *n, unsigned keep)
{
    virtq_unpop(&n->dev.vq[Q_RX], (uint16_t)(n->n_taken - keep));
    n->n_taken = n->n_iov = 0;
}

static size_t net_reserve(struct link *l, size_t min, size_t want, const struct iovec **iov,
                          unsigned *ret_n)
{
    struct net_dev *n = CONTAINER_OF(l, struct net_dev, link);
    bool merge = negotiated(n, VIRTIO_NET_F_MRG_RXBUF);
    size_t room = 0, got;
    if (!n->dev.vq[Q_RX].running || n->dev.broken) {
        n->starved = true; /* its first kick comes when it runs */
        return 0;
    }
    assert(n->n_taken == 0); /* one reservation at a time */
    do {
        got = take_buffer(n);
        room += got;
    } while (got > 0 && merge && room < HDR_LEN + want && n->n_iov < LINK_IOV_MAX &&
             n->n_taken < VIRTQ_SIZE_MAX);
    if (n->dev.broken)
        return 0;
    size_t fit = room > HDR_LEN ? MIN(want, room - HDR_LEN) : 0;
    n->n_room = iov_slice(n->room, LINK_IOV_MAX, n->iov, n->n_iov, HDR_LEN, fit);
    fit = iov_total(n->room, n->n_room);
    if (fit >= min && fit > 0) {
        *iov = n->room;
        *ret_n = n->n_room;
        return fit;
    }
    if (got > 0) { /* more of them would not help */
        virtio_dev_break(&n->dev, "net: receive buffers are too small");
        return 0;
    }
    untake(n, 0);
    n->starved = true;
    n->stats.starved++;
    return 0;
}

static void fill_header(struct virtio_net_hdr_v1 *h, const struct link_offload *o)
{
    static const uint8_t gso[] = {
        [LINK_GSO_NONE] = VIRTIO_NET_HDR_GSO_NONE,
        [LINK_GSO_TCP4] = VIRTIO_NET_HDR_GSO_TCPV4,
        [LINK_GSO_TCP6] = VIRTIO_NET_HDR_GSO_TCPV6,
    };
    h->flags = o->csum ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0;
    h->gso_type = gso[o->gso];
    h->hdr_len = o->hdr_len;
    h->gso_size = o->gso_size;
    h->csum_start = o->csum_start;
    h->csum_offset = o->csum_offset;
}

static void net_commit(struct link *l, const struct link_offload *o, size_t len)
{
    struct net_dev *n = CONTAINER_OF(l, struct net_dev, link);
    struct virtq *q = &n->dev.vq[Q_RX];
    size_t left = len > 0 ? len + HDR_LEN : 0;
    uint16_t used = 0;
    for (size_t have = 0; have < left && used < n->n_taken; used++)
        have += n->taken[used].len;
    if (used > 0) {
        struct virtio_net_hdr_v1 h = {.num_buffers = used};
        fill_header(&h, o);
        (void)iov_write(n->iov, n->n_iov, 0, &h, HDR_LEN);
        n->stats.rx_frames++;
        n->stats.rx_bytes += len;
        n->stats.rx_large += len > (size_t)LINK_ETH + n->config.mtu;
    }
    for (unsigned i = 0; i < used; i++) {
        size_t part = MIN(left, n->taken[i].len);
        virtq_put(q, n->taken[i].head, (uint32_t)part);
        left -= part;
    }
    assert(left == 0); /* no more than was reserved */
    virtq_show(q);
    untake(n, used);
}

static void net_flush(struct link *l)
{
    virtio_dev_interrupt(&CONTAINER_OF(l, struct net_dev, link)->dev, Q_RX);
}

static const struct link_ops link_ops = {net_reserve, net_commit, net_flush};

static int64_t rx_kick(struct net_dev *n)
{
    if (n->starved) {
        n->starved = false;
        n->link.user->room(n->link.ctx);
    }
    return VIRTIO_IDLE;
}

/* --- life ------------------------------------------------------------------------------------ */

/* The first kick of a queue comes when it is started: features are settled then. */
static void note_features(struct net_dev *n)
{
    if (n->started)
        return;
    n->started = true;
    n->link.caps = (negotiated(n, VIRTIO_NET_F_GUEST_CSUM) ? LINK_CSUM : 0U) |
                   (negotiated(n, VIRTIO_NET_F_GUEST_TSO4) ? LINK_TSO4 : 0U) |
                   (negotiated(n, VIRTIO_NET_F_GUEST_TSO6) ? LINK_TSO6 : 0U) |
                   (negotiated(n, VIRTIO_NET_F_MRG_RXBUF) ? LINK_ANY_SIZE : 0U);
    if (!(n->link.caps & LINK_CSUM)) /* segmentation needs it */
        n->link.caps &= ~(unsigned)(LINK_TSO4 | LINK_TSO6);
}

static int64_t net_kick(struct virtio_dev *d, unsigned queue)
{
    struct net_dev *n = CONTAINER_OF(d, struct net_dev, dev);
    note_features(n);
    if (!n->link.user) /* no user: the driver waits */
        return VIRTIO_IDLE;
    return queue == Q_RX ? rx_kick(n) : tx_kick(n);
}

static void net_reset(struct virtio_dev *d)
{
    struct net_dev *n = CONTAINER_OF(d, struct net_dev, dev);
    n->starved = n->started = false;
    n->n_taken = n->n_iov = 0;
    n->link.caps = 0;
    if (n->link.user)
        n->link.user->reset(n->link.ctx);
}

static void net_free(struct virtio_dev *d)
{
    free(CONTAINER_OF(d, struct net_dev, dev));
}

const struct virtio_dev_ops virtio_net_ops = {
    .name = "net",
    .id = VIRTIO_ID_NET,
    .n_queues = N_QUEUES,
    .kick = net_kick,
    .reset = net_reset,
    .free = net_free,
};

int virtio_net_new(struct virtio_dev **ret, const uint8_t mac[6], uint16_t mtu)
{
    struct net_dev *n = calloc(1, sizeof(*n));
    if (!n)
        return -ENOMEM;
    n->dev.ops = &virtio_net_ops;
    n->dev.features = VIRTIO_BASE_FEATURES | NET_FEATURES;
    n->dev.config = &n->config;
    n->dev.config_len = sizeof(n->config);
    memcpy(n->config.mac, mac, 6);
    n->config.max_virtqueue_pairs = 1;
    n->config.mtu = mtu;
    n->link.ops = &link_ops;
    *ret = &n->dev;
    return 0;
}

struct link *virtio_net_link(struct virtio_dev *d)
{
    return &CONTAINER_OF(d, struct net_dev, dev)->link;
}

const struct virtio_net_stats *virtio_net_stats(const struct virtio_dev *d)
{
    return &CONTAINER_OF(d, const struct net_dev, dev)->stats;
}
