/* The device: packets from the guest, the queues, listeners. Streams are in vsock_stream.c.
 *
 * Invariants of both files:
 *
 *  1. A packet's header is copied once, checked, and only the copy is used. Payload is passed on in
 *     place; its length was checked against the chain before.
 *  2. A stream never holds more than VSOCK_CREDIT bytes, and all together never more than
 *     VSOCK_HELD_MAX: more is a violation, and the stream is reset.
 *  3. Control packets are bits in `due`, one per kind and stream, so there is nothing to
 *     overflow. Resets for no stream are in a ring of REPLIES_MAX; while it is full, the guest's
 *     packets are not read, so it cannot overflow either.
 *  4. Nothing is sent of a stream's data before its request or response, and none after its
 *     shutdown. Control packets of all streams go before data of any.
 *  5. What we send is bounded by the guest's credit, computed so that a lie (more acknowledged than
 *     was sent, or a buffer that shrinks below what is in flight) gives no credit.
 *  6. A stream that wants to send and cannot is woken: by a packet with credit, or (being in
 *     `waiting`) by new receive buffers. While `pending` or `waiting` is not empty, the receive
 *     queue's notifications are armed.
 *  7. A stream's slot is not reused while any call is in progress (`depth`), so a callback may end
 *     any stream.
 *  8. The guest owns at most VSOCK_STREAMS_MAX - VSOCK_HOST_RESERVE slots. Closed streams whose
 *     reset the guest owes us give way, oldest first.
 *  9. No callback comes after the owner closed the stream, nor after closed().
 */
#include "virtio/vsock.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <sys/random.h>

#include "util/cleanup.h"
#include "util/iov.h"
#include "virtio/vsock_impl.h"

/* #syscalls:monitor getrandom */

enum {
    TURN_PACKETS = 256, /* work in one turn of the loop */
    TURN_BYTES = 4 << 20,
    FLUSH_EVERY = 16, /* packets between updates of credit and interrupts */
};

static struct vsock *vsock_of(const struct virtio_dev *d)
{
    return CONTAINER_OF(d, struct vsock, dev);
}

/* --- packets from the guest ----------------------------------------------------------------- */

static void reply_reset(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    if (h->op == VIRTIO_VSOCK_OP_RST || v->n_replies == REPLIES_MAX)
        return;
    v->reply[(v->reply_head + v->n_replies++) % REPLIES_MAX] =
        (struct vsock_reply){.guest_port = h->src_port, .host_port = h->dst_port, .type = h->type};
}

static struct vsock_listener *find_listener(struct vsock *v, uint32_t port)
{
    for (unsigned i = 0; i < VSOCK_LISTENERS_MAX; i++)
        if (v->listener[i].accept && v->listener[i].port == port)
            return &v->listener[i];
    return NULL;
}

static void accept_stream(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    const struct vsock_listener *l = find_listener(v, h->dst_port);
    struct vsock_stream *s = l ? stream_new(v, h->src_port, h->dst_port, true) : NULL;
    if (!s) {
        v->stats.refused++;
        reply_reset(v, h);
        return;
    }
    s->state = STREAM_OPEN;
    s->peer_alloc = h->buf_alloc;
    s->peer_fwd = h->fwd_cnt;
    stream_due(s, DUE_RESPONSE);
    int r = l->accept(s, l->ctx);
    if (r >= 0) {
        if (r == VSOCK_LATER && stream_alive(s))
            s->due &= ~(unsigned)DUE_RESPONSE;
        v->stats.accepted++;
        return;
    }
    v->stats.refused++;
    if (stream_alive(s)) {
        s->ops = NULL;
        stream_reset(s);
    }
}

static void handle_shutdown(struct vsock_stream *s, uint32_t flags)
{
    s->shut_peer |= flags & (VSOCK_SHUT_RECV | VSOCK_SHUT_SEND);
    if (s->state == STREAM_LINGER) {
        if (s->shut_peer == (VSOCK_SHUT_RECV | VSOCK_SHUT_SEND))
            stream_reset(s);
        return;
    }
    stream_check_end(s);
    if (stream_alive(s))
        stream_check_writable(s); /* what is sent from now on is taken and dropped */
}

static void handle_data(struct vsock *v, struct vsock_stream *s, const struct virtio_vsock_hdr *h)
{
    uint32_t len = h->len;
    if (s->state == STREAM_LINGER) { /* its owner is gone: tell the guest */
        stream_reset(s);
        return;
    }
    if (len > v->tx.out_len - HDR_LEN || (s->shut_peer & VSOCK_SHUT_SEND)) {
        stream_violation(s);
        return;
    }
    if (len == 0)
        return;
    if (len > VSOCK_CREDIT - (s->rx_cnt - s->fwd_cnt)) {
        stream_violation(s);
        return;
    }
    s->rx_cnt += len;
    v->stats.rx_bytes += len;
    struct iovec part[VIRTQ_CHAIN_MAX];
    unsigned n = iov_slice(part, VIRTQ_CHAIN_MAX, virtq_out(&v->tx), v->tx.n_out, HDR_LEN, len);
    stream_receive(s, part, n);
}

static void handle_stream_packet(struct vsock *v, struct vsock_stream *s,
                                 const struct virtio_vsock_hdr *h)
{
    if (h->op == VIRTIO_VSOCK_OP_RST) {
        stream_peer_reset(s);
        return;
    }
    if (s->state == STREAM_RESET || s->peer_reset)
        return; /* our reset is on its way, or the guest forgot that it has reset it */
    s->peer_alloc = h->buf_alloc;
    s->peer_fwd = h->fwd_cnt;
    if ((s->state == STREAM_REQUESTED) != (h->op == VIRTIO_VSOCK_OP_RESPONSE)) {
        stream_violation(s);
        return;
    }
    switch (h->op) {
    case VIRTIO_VSOCK_OP_RESPONSE:
        s->state = STREAM_OPEN;
        v->stats.connected++;
        if (s->ops && s->ops->connected)
            s->ops->connected(s, s->ctx);
        break;
    case VIRTIO_VSOCK_OP_SHUTDOWN:
        handle_shutdown(s, h->flags);
        return;
    case VIRTIO_VSOCK_OP_RW:
        handle_data(v, s, h);
        break;
    case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
        break;
    case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
        stream_due(s, DUE_CREDIT);
        break;
    default:
        stream_violation(s);
        return;
    }
    if (stream_alive(s))
        stream_check_writable(s);
}

/* The packet in v->tx. */
static void handle_packet(struct vsock *v)
{
    struct virtio_vsock_hdr h;
    if (virtq_chain_read(&v->tx, 0, &h, sizeof(h)) != sizeof(h) || h.src_cid != v->guest_cid ||
        h.dst_cid != VSOCK_HOST_CID) {
        v->stats.dropped++;
        return;
    }
    if (h.type != VIRTIO_VSOCK_TYPE_STREAM) {
        v->stats.dropped++;
        reply_reset(v, &h);
        return;
    }
    struct vsock_stream *s = stream_find(v, h.src_port, h.dst_port);
    if (s)
        handle_stream_packet(v, s, &h);
    else if (h.op == VIRTIO_VSOCK_OP_REQUEST)
        accept_stream(v, &h);
    else
        reply_reset(v, &h);
}

/* --- queues --------------------------------------------------------------------------------- */

/* Sends credit, and tells the guest which buffers were returned. */
static void settle(struct vsock *v)
{
    (void)vsock_flush(v);
    virtio_dev_interrupt(&v->dev, Q_TX);
}

static int64_t kick_tx(struct vsock *v)
{
    struct virtio_dev *d = &v->dev;
    struct virtq *q = &d->vq[Q_TX];
    size_t bytes = 0;
    unsigned packets = 0;
    int r = 0;
    do {
        virtq_notify_off(q);
        for (;;) {
            v->tx_paused = v->n_replies == REPLIES_MAX && !vsock_flush(v);
            r = v->tx_paused ? -EAGAIN : virtio_dev_pop(d, Q_TX, &v->tx); /* kick_rx resumes */
            if (r <= 0)
                break;
            handle_packet(v);
            bytes += v->tx.out_len;
            virtq_push(q, &v->tx, 0);
            if (++packets % FLUSH_EVERY == 0)
                settle(v);
            if (packets == TURN_PACKETS || bytes >= TURN_BYTES) {
                settle(v);
                return 0;
            }
        }
    } while (r == 0 && virtq_notify_on(q));
    settle(v);
    return VIRTIO_IDLE;
}

static void kick_rx(struct vsock *v)
{
    virtq_notify_off(&v->dev.vq[Q_RX]);
    if (vsock_flush(v))
        vsock_wake_waiting(v);
    if (v->tx_paused && v->n_replies < REPLIES_MAX && v->dev.transport)
        v->dev.transport->kick_later(v->dev.transport, Q_TX, 0);
}

static int64_t vsock_kick(struct virtio_dev *d, unsigned queue)
{
    struct vsock *v = vsock_of(d);
    int64_t again = VIRTIO_IDLE;
    vsock_enter(v);
    if (queue == Q_RX)
        kick_rx(v);
    else if (queue == Q_TX)
        again = kick_tx(v);
    /* The event queue's buffers stay with us: there are no events. */
    vsock_leave(v);
    return again;
}

static void vsock_reset(struct virtio_dev *d)
{
    struct vsock *v = vsock_of(d);
    vsock_enter(v);
    v->n_replies = 0;
    v->tx_paused = false;
    vsock_drop_all(v);
    vsock_leave(v);
}

static void vsock_free(struct virtio_dev *d)
{
    struct vsock *v = vsock_of(d);
    vsock_enter(v);
    vsock_drop_all(v);
    vsock_leave(v);
    free(v);
}

const struct virtio_dev_ops virtio_vsock_ops = {
    .name = "vsock",
    .id = VIRTIO_ID_VSOCK,
    .n_queues = N_QUEUES,
    .kick = vsock_kick,
    .reset = vsock_reset,
    .free = vsock_free,
};

/* --- owners --------------------------------------------------------------------------------- */

int virtio_vsock_new(struct virtio_dev **ret, uint64_t guest_cid)
{
    if (guest_cid <= VSOCK_HOST_CID || guest_cid >= UINT32_MAX)
        return -EINVAL;
    AUTO_FREE struct vsock *v = calloc(1, sizeof(*v));
    if (!v)
        return -ENOMEM;
    if (getrandom(&v->seed, sizeof(v->seed), 0) != (ssize_t)sizeof(v->seed))
        return -EIO;
    v->guest_cid = guest_cid;
    v->config.guest_cid = guest_cid;
    v->next_port = 1U << 30;
    node_init(&v->pending);
    node_init(&v->waiting);
    node_init(&v->linger);
    v->dev.ops = &virtio_vsock_ops;
    v->dev.features = VIRTIO_BASE_FEATURES;
    v->dev.config = &v->config;
    v->dev.config_len = sizeof(v->config);
    *ret = &steal_ptr(&v)->dev;
    return 0;
}

void vsock_stats(const struct virtio_dev *d, struct vsock_stats *ret)
{
    *ret = vsock_of(d)->stats;
}

int vsock_listen(struct virtio_dev *d, uint32_t port, vsock_accept_fn accept, void *ctx)
{
    struct vsock *v = vsock_of(d);
    if (find_listener(v, port))
        return -EADDRINUSE;
    for (unsigned i = 0; i < VSOCK_LISTENERS_MAX; i++)
        if (!v->listener[i].accept) {
            v->listener[i] = (struct vsock_listener){.port = port, .accept = accept, .ctx = ctx};
            return 0;
        }
    return -ENOSPC;
}
