/* Streams: their slots, sending their data, and the functions that their owners call. Invariants:
 * vsock.c. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/iov.h"
#include "virtio/vsock_impl.h"

/* --- slots ---------------------------------------------------------------------------------- */

void vsock_enter(struct vsock *v)
{
    v->depth++;
}

void vsock_leave(struct vsock *v)
{
    assert(v->depth > 0);
    if (--v->depth > 0)
        return;
    while (v->dead) {
        struct vsock_stream *s = v->dead;
        v->dead = s->chain;
        s->state = STREAM_FREE;
        s->chain = v->free_slots;
        v->free_slots = s;
    }
}

static struct vsock_stream **bucket(struct vsock *v, uint32_t guest_port, uint32_t host_port)
{
    uint64_t x = ((uint64_t)guest_port << 32 | host_port) ^ v->seed;
    x *= 0x9e3779b97f4a7c15ULL;
    x ^= x >> 32;
    x = (x ^ v->seed) * 0xd6e8feb86659fd93ULL;
    return &v->hash[x >> 32 & (HASH_SIZE - 1)];
}

struct vsock_stream *stream_find(struct vsock *v, uint32_t guest_port, uint32_t host_port)
{
    struct vsock_stream *s = *bucket(v, guest_port, host_port);
    while (s && (s->guest_port != guest_port || s->host_port != host_port))
        s = s->chain;
    return s;
}

static struct vsock_stream *take_slot(struct vsock *v)
{
    struct vsock_stream *s = v->free_slots;
    if (s)
        v->free_slots = s->chain;
    else if (v->slots_used < VSOCK_STREAMS_MAX)
        s = &v->slot[v->slots_used++];
    return s;
}

/* Makes room: resets the oldest stream that only waits for the guest's reset. */
static void evict_linger(struct vsock *v)
{
    if (!node_linked(&v->linger))
        return;
    vsock_enter(v);
    stream_reset(CONTAINER_OF(v->linger.next, struct vsock_stream, waiting));
    (void)vsock_flush(v);
    vsock_leave(v);
}

struct vsock_stream *stream_new(struct vsock *v, uint32_t guest_port, uint32_t host_port,
                                bool by_guest)
{
    unsigned limit = VSOCK_STREAMS_MAX - VSOCK_HOST_RESERVE;
    if (by_guest ? v->n_by_guest >= limit : v->stats.streams >= VSOCK_STREAMS_MAX)
        evict_linger(v);
    if (by_guest && v->n_by_guest >= limit)
        return NULL;
    struct vsock_stream *s = take_slot(v);
    if (!s)
        return NULL;
    assert(s->state == STREAM_FREE);
    *s = (struct vsock_stream){
        .v = v, .guest_port = guest_port, .host_port = host_port, .by_guest = by_guest};
    buf_init(&s->held, VSOCK_CREDIT);
    node_init(&s->pending);
    node_init(&s->waiting);
    struct vsock_stream **b = bucket(v, guest_port, host_port);
    s->chain = *b;
    *b = s;
    v->stats.streams++;
    v->n_by_guest += by_guest;
    return s;
}

bool stream_alive(const struct vsock_stream *s)
{
    return s->state == STREAM_REQUESTED || s->state == STREAM_OPEN;
}

static void drop_held(struct vsock_stream *s)
{
    assert(s->v->held >= buf_len(&s->held));
    s->v->held -= buf_len(&s->held);
    buf_free(&s->held);
}

static void stop_waiting(struct vsock_stream *s)
{
    if (!node_linked(&s->waiting))
        return;
    if (s->state != STREAM_LINGER) {
        assert(s->v->n_waiting > 0);
        s->v->n_waiting--;
    }
    node_unlink(&s->waiting);
}

/* Out of all lists; calls no callback. */
static void stream_drop(struct vsock_stream *s)
{
    struct vsock *v = s->v;
    if (s->state == STREAM_DEAD || s->state == STREAM_FREE)
        return;
    struct vsock_stream **p = bucket(v, s->guest_port, s->host_port);
    while (*p != s)
        p = &(*p)->chain;
    *p = s->chain;
    stop_waiting(s);
    node_unlink(&s->pending);
    drop_held(s);
    s->state = STREAM_DEAD;
    s->ops = NULL;
    s->due = 0;
    s->chain = v->dead;
    v->dead = s;
    assert(v->stats.streams > 0 && v->n_by_guest >= s->by_guest);
    v->stats.streams--;
    v->n_by_guest -= s->by_guest;
}

/* --- ends ----------------------------------------------------------------------------------- */

/* Takes the stream from its owner; from here on it belongs to the device. */
static void disown(struct vsock_stream *s, enum stream_state state)
{
    stop_waiting(s);
    drop_held(s);
    s->state = state;
    s->ops = NULL;
    s->want_write = false;
}

/* Tells the owner, who no longer has the stream. */
static void tell_closed(struct vsock_stream *s, const struct vsock_stream_ops *ops, bool reset)
{
    if (ops && ops->closed)
        ops->closed(s, s->ctx, reset);
}

void stream_reset(struct vsock_stream *s)
{
    if (s->state == STREAM_RESET || s->state == STREAM_DEAD)
        return;
    const struct vsock_stream_ops *ops = s->ops;
    bool unsent = s->due & DUE_REQUEST;
    disown(s, STREAM_RESET);
    if (unsent) { /* the guest does not know of it yet */
        stream_drop(s);
    } else {
        s->due = 0;
        stream_due(s, DUE_RST);
    }
    tell_closed(s, ops, true);
}

void stream_violation(struct vsock_stream *s)
{
    s->v->stats.violations++;
    stream_reset(s);
}

void stream_peer_reset(struct vsock_stream *s)
{
    const struct vsock_stream_ops *ops = s->ops;
    if (s->state == STREAM_OPEN && s->shut_peer == (VSOCK_SHUT_RECV | VSOCK_SHUT_SEND)) {
        s->peer_reset = true; /* it had closed, and waited long enough for our reset */
        stream_check_end(s);
        return;
    }
    stream_drop(s);
    tell_closed(s, ops, true);
}

void stream_check_end(struct vsock_stream *s)
{
    if (!stream_alive(s) || buf_len(&s->held) > 0 || !(s->shut_peer & VSOCK_SHUT_SEND))
        return;
    if (!s->told_shutdown) {
        s->told_shutdown = true;
        if (s->ops && s->ops->peer_shutdown)
            s->ops->peer_shutdown(s, s->ctx);
    }
    if (!stream_alive(s) || !(s->shut_peer & VSOCK_SHUT_RECV))
        return;
    const struct vsock_stream_ops *ops = s->ops;
    bool peer_reset = s->peer_reset;
    disown(s, STREAM_RESET);
    s->due = 0;
    if (peer_reset)
        stream_drop(s);
    else
        stream_due(s, DUE_RST);
    tell_closed(s, ops, false);
}

void vsock_drop_all(struct vsock *v)
{
    /* Not streams that an owner opens in closed(): they belong to the next driver. */
    for (unsigned i = 0, n = v->slots_used; i < n; i++) {
        struct vsock_stream *s = &v->slot[i];
        const struct vsock_stream_ops *ops = s->ops;
        if (s->state == STREAM_FREE || s->state == STREAM_DEAD)
            continue;
        stream_drop(s);
        tell_closed(s, ops, true);
    }
}

/* --- from the guest ------------------------------------------------------------------------- */

static void consumed(struct vsock_stream *s, size_t n)
{
    s->fwd_cnt += (uint32_t)n;
    if (s->fwd_cnt - s->fwd_told >= VSOCK_CREDIT / 4)
        stream_due(s, DUE_CREDIT);
}

/* Offers bytes to the owner; returns how many it took. The stream may be gone afterwards. */
static size_t offer(struct vsock_stream *s, const void *p, size_t n)
{
    size_t took = n;
    if (s->ops && s->ops->data && !(s->shut_local & VSOCK_SHUT_RECV)) {
        s->in_data = true;
        took = s->ops->data(s, s->ctx, p, n);
        s->in_data = false;
        took = MIN(took, n);
    }
    if (stream_alive(s))
        consumed(s, took);
    return took;
}

static bool hold(struct vsock_stream *s, const uint8_t *p, size_t n)
{
    if (n > VSOCK_HELD_MAX - s->v->held || buf_append(&s->held, p, n) < 0)
        return false;
    s->v->held += n;
    return true;
}

/* The credit that we owe the guest is exactly what we hold. */
static void assert_credit(const struct vsock_stream *s)
{
    assert(s->rx_cnt - s->fwd_cnt == buf_len(&s->held));
}

/* Offers what is held, until the owner has enough. */
static void drain(struct vsock_stream *s)
{
    for (;;) {
        s->resumed = false;
        size_t n = buf_len(&s->held);
        if (!stream_alive(s) || n == 0)
            break;
        size_t took = offer(s, buf_head(&s->held), n);
        if (!stream_alive(s))
            return;
        buf_consume(&s->held, took);
        s->v->held -= took;
        assert_credit(s);
        if (took < n && !(s->resumed && took > 0))
            break;
    }
    buf_shrink(&s->held);
    stream_check_end(s);
}

void stream_receive(struct vsock_stream *s, const struct iovec *iov, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const uint8_t *p = iov[i].iov_base;
        size_t len = iov[i].iov_len;
        size_t took = buf_len(&s->held) == 0 ? offer(s, p, len) : 0;
        if (!stream_alive(s))
            return;
        if (took < len && !hold(s, p + took, len - took)) {
            stream_violation(s);
            return;
        }
    }
    assert_credit(s);
    if (s->resumed)
        drain(s);
}

void vsock_resume(struct vsock_stream *s)
{
    struct vsock *v = s->v;
    if (s->in_data) {
        s->resumed = true;
        return;
    }
    vsock_enter(v);
    drain(s);
    (void)vsock_flush(v);
    vsock_leave(v);
}

/* --- to the guest --------------------------------------------------------------------------- */

void stream_due(struct vsock_stream *s, unsigned due)
{
    assert(s->state != STREAM_FREE && s->state != STREAM_DEAD);
    s->due |= due;
    if (!node_linked(&s->pending))
        node_append(&s->v->pending, &s->pending);
}

/* Whether there is a receive buffer; if not, its arrival will kick us. */
static bool rx_ready(struct vsock *v)
{
    struct virtq *q = &v->dev.vq[Q_RX];
    return virtq_pending(q) || virtq_notify_on(q);
}

/* Takes a receive buffer of more than `least` bytes into v->rx. */
static bool rx_take(struct vsock *v, size_t least)
{
    if (!rx_ready(v) || virtio_dev_pop(&v->dev, Q_RX, &v->rx) <= 0)
        return false;
    if (v->rx.in_len >= least)
        return true;
    virtio_dev_break(&v->dev, "vsock: receive buffer is too small");
    return false;
}

/* Fills in the header of what is in v->rx, and gives it to the guest. */
static void rx_put(struct vsock *v, struct virtio_vsock_hdr *h)
{
    h->src_cid = VSOCK_HOST_CID;
    h->dst_cid = v->guest_cid;
    (void)virtq_chain_write(&v->rx, 0, h, sizeof(*h));
    virtq_push(&v->dev.vq[Q_RX], &v->rx, HDR_LEN + h->len);
}

static void rx_put_stream(struct vsock_stream *s, uint16_t op, uint32_t flags, uint32_t len)
{
    struct virtio_vsock_hdr h = {
        .src_port = s->host_port,
        .dst_port = s->guest_port,
        .len = len,
        .type = VIRTIO_VSOCK_TYPE_STREAM,
        .op = op,
        .flags = flags,
        .buf_alloc = VSOCK_CREDIT,
        .fwd_cnt = s->fwd_cnt,
    };
    s->fwd_told = s->fwd_cnt;
    s->due &= ~(unsigned)DUE_CREDIT; /* every packet carries it */
    rx_put(s->v, &h);
}

static void flush_replies(struct vsock *v)
{
    while (v->n_replies > 0 && rx_take(v, HDR_LEN)) {
        const struct vsock_reply *r = &v->reply[v->reply_head];
        struct virtio_vsock_hdr h = {.src_port = r->host_port,
                                     .dst_port = r->guest_port,
                                     .type = r->type,
                                     .op = VIRTIO_VSOCK_OP_RST};
        v->reply_head = (v->reply_head + 1) % REPLIES_MAX;
        v->n_replies--;
        rx_put(v, &h);
    }
}

/* Sends the first thing in s->due; a buffer is in v->rx. */
static void send_control(struct vsock_stream *s)
{
    static const struct {
        unsigned due;
        uint16_t op;
    } order[] = {
        {DUE_REQUEST, VIRTIO_VSOCK_OP_REQUEST},
        {DUE_RESPONSE, VIRTIO_VSOCK_OP_RESPONSE},
        {DUE_CREDIT, VIRTIO_VSOCK_OP_CREDIT_UPDATE},
        {DUE_SHUTDOWN, VIRTIO_VSOCK_OP_SHUTDOWN},
        {DUE_RST, VIRTIO_VSOCK_OP_RST},
    };
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        if (!(s->due & order[i].due))
            continue;
        s->due &= ~order[i].due;
        rx_put_stream(s, order[i].op, order[i].due == DUE_SHUTDOWN ? s->shut_local : 0, 0);
        if (order[i].due == DUE_RST)
            stream_drop(s);
        return;
    }
}

bool vsock_flush(struct vsock *v)
{
    flush_replies(v);
    while (node_linked(&v->pending)) {
        struct vsock_stream *s = CONTAINER_OF(v->pending.next, struct vsock_stream, pending);
        if (s->due == 0) {
            node_unlink(&s->pending);
            continue;
        }
        if (!rx_take(v, HDR_LEN))
            break;
        send_control(s);
    }
    virtio_dev_interrupt(&v->dev, Q_RX);
    return v->n_replies == 0 && !node_linked(&v->pending);
}

static uint32_t peer_credit(const struct vsock_stream *s)
{
    uint32_t in_flight = s->tx_cnt - s->peer_fwd;
    return in_flight < s->peer_alloc ? s->peer_alloc - in_flight : 0;
}

static void wait_for_buffers(struct vsock_stream *s)
{
    s->want_write = true;
    if (node_linked(&s->waiting))
        return;
    node_append(&s->v->waiting, &s->waiting);
    s->v->n_waiting++;
}

static void call_writable(struct vsock_stream *s)
{
    s->want_write = false;
    if (s->ops && s->ops->writable)
        s->ops->writable(s, s->ctx);
}

void stream_check_writable(struct vsock_stream *s)
{
    if (s->state == STREAM_OPEN && s->want_write && !node_linked(&s->waiting) &&
        (peer_credit(s) > 0 || (s->shut_peer & VSOCK_SHUT_RECV)))
        call_writable(s);
}

void vsock_wake_waiting(struct vsock *v)
{
    for (unsigned n = v->n_waiting; n > 0 && node_linked(&v->waiting) && rx_ready(v); n--) {
        struct vsock_stream *s = CONTAINER_OF(v->waiting.next, struct vsock_stream, waiting);
        stop_waiting(s);
        call_writable(s);
    }
}

/* Sends one packet's worth of iov from `off` on; 0 if something is in the way. */
static size_t send_packet(struct vsock_stream *s, const struct iovec *iov, unsigned n, size_t off,
                          size_t len)
{
    struct vsock *v = s->v;
    uint32_t credit = peer_credit(s);
    if (credit == 0) {
        s->want_write = true; /* a packet with credit will wake it */
        return 0;
    }
    if (!rx_take(v, HDR_LEN + 1)) {
        wait_for_buffers(s);
        return 0;
    }
    len = MIN(len, (size_t)credit);
    len = MIN(len, v->rx.in_len - HDR_LEN);
    len = MIN(len, (size_t)PACKET_MAX);
    len = iov_move(virtq_in(&v->rx), v->rx.n_in, HDR_LEN, iov, n, off, len);
    rx_put_stream(s, VIRTIO_VSOCK_OP_RW, 0, (uint32_t)len);
    assert(len > 0 && len <= credit);
    s->tx_cnt += (uint32_t)len;
    v->stats.tx_bytes += len;
    return len;
}

size_t vsock_send(struct vsock_stream *s, const struct iovec *iov, unsigned n)
{
    struct vsock *v = s->v;
    size_t total = iov_total(iov, n), sent = 0;
    if (!stream_alive(s) || (s->shut_local & VSOCK_SHUT_SEND))
        return 0;
    if (s->shut_peer & VSOCK_SHUT_RECV)
        return total;
    if (s->state == STREAM_REQUESTED) {
        s->want_write = true;
        return 0;
    }
    vsock_enter(v);
    if (!vsock_flush(v)) {
        wait_for_buffers(s);
    } else {
        while (sent < total) {
            size_t k = send_packet(s, iov, n, sent, total - sent);
            if (k == 0)
                break;
            sent += k;
        }
        virtio_dev_interrupt(&v->dev, Q_RX);
    }
    vsock_leave(v);
    return sent;
}

size_t vsock_send_buf(struct vsock_stream *s, const void *p, size_t len)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)p, .iov_len = len};
    return vsock_send(s, &iov, 1);
}

/* --- the rest of the owner's side ----------------------------------------------------------- */

struct vsock_stream *vsock_connect(struct virtio_dev *d, uint32_t guest_port,
                                   const struct vsock_stream_ops *ops, void *ctx)
{
    struct vsock *v = CONTAINER_OF(d, struct vsock, dev);
    uint32_t port;
    do {
        port = v->next_port++;
        if (v->next_port == UINT32_MAX)
            v->next_port = 1U << 30;
    } while (stream_find(v, guest_port, port));
    struct vsock_stream *s = stream_new(v, guest_port, port, false);
    if (!s) {
        errno = EMFILE;
        return NULL;
    }
    vsock_enter(v);
    s->state = STREAM_REQUESTED;
    s->ops = ops;
    s->ctx = ctx;
    stream_due(s, DUE_REQUEST);
    (void)vsock_flush(v);
    vsock_leave(v);
    return s;
}

void vsock_answer(struct vsock_stream *s)
{
    struct vsock *v = s->v;
    if (s->state != STREAM_OPEN)
        return;
    vsock_enter(v);
    stream_due(s, DUE_RESPONSE);
    (void)vsock_flush(v);
    vsock_leave(v);
}

void vsock_set_ops(struct vsock_stream *s, const struct vsock_stream_ops *ops, void *ctx)
{
    s->ops = ops;
    s->ctx = ctx;
}

size_t vsock_held(const struct vsock_stream *s)
{
    return buf_len(&s->held);
}

void vsock_shutdown(struct vsock_stream *s, unsigned flags)
{
    struct vsock *v = s->v;
    unsigned now = s->shut_local | (flags & (VSOCK_SHUT_RECV | VSOCK_SHUT_SEND));
    if (s->state != STREAM_OPEN || now == s->shut_local)
        return;
    vsock_enter(v);
    s->shut_local = now;
    stream_due(s, DUE_SHUTDOWN);
    if ((now & VSOCK_SHUT_RECV) && !s->in_data)
        drain(s); /* throws it away */
    (void)vsock_flush(v);
    vsock_leave(v);
}

void vsock_close(struct vsock_stream *s)
{
    struct vsock *v = s->v;
    bool peer_closed = s->shut_peer == (VSOCK_SHUT_RECV | VSOCK_SHUT_SEND);
    if (s->state != STREAM_OPEN || peer_closed) {
        /* A guest that has closed waits for a reset; a pending request is withdrawn. */
        vsock_abort(s);
        return;
    }
    vsock_enter(v);
    disown(s, STREAM_LINGER);
    node_append(&v->linger, &s->waiting);
    s->shut_local = VSOCK_SHUT_RECV | VSOCK_SHUT_SEND;
    stream_due(s, DUE_SHUTDOWN);
    (void)vsock_flush(v);
    vsock_leave(v);
}

void vsock_abort(struct vsock_stream *s)
{
    struct vsock *v = s->v;
    if (!stream_alive(s))
        return;
    vsock_enter(v);
    s->ops = NULL; /* its owner already knows */
    if (s->peer_reset)
        stream_drop(s);
    else
        stream_reset(s);
    (void)vsock_flush(v);
    vsock_leave(v);
}
