#include "monitor/vsock_ports.h"

#include "monitor/connector_link.h"
#include "util/buf.h"
#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* #syscalls:monitor sendto recvfrom shutdown close epoll_ctl */

/* A connection. It keeps its slot from the guest's connect until both sides have ended, and at
 * least until the connector has answered. */
struct vsock_conn {
    struct vsock_ports *p;
    uint32_t slot;
    struct vsock_stream *stream; /* NULL: the guest has left */
    struct loop_src src;         /* the host's end; fd -1: not connected yet */
    struct node ready;
    struct buf out; /* for the guest: what it has not taken yet */
    bool readable;  /* the host's socket may have more */
    bool host_eof;  /* ... or has reached its end */
    bool told_eof;  /* ... and the guest was told */
    bool guest_eof; /* the guest will send no more */
    bool deaf;      /* the host's server has stopped reading */
};

static void conn_free(struct vsock_conn *c)
{
    struct vsock_ports *p = c->p;
    int fd = c->src.fd;
    assert(p->conn[c->slot] == c && p->n_conns > 0);
    loop_del(p->loop, &c->src);
    close_fd(&fd);
    node_unlink(&c->ready);
    buf_free(&c->out);
    p->conn[c->slot] = NULL;
    p->n_conns--;
    free(c);
}

/* Ends both sides: cleanly, or with a reset for the guest. */
static void conn_finish(struct vsock_conn *c, bool reset)
{
    struct vsock_stream *s = c->stream;
    c->stream = NULL;
    if (s && reset)
        vsock_abort(s);
    else if (s)
        vsock_close(s);
    conn_free(c);
}

static void make_ready(struct vsock_conn *c)
{
    struct vsock_ports *p = c->p;
    if (node_linked(&c->ready))
        return;
    node_append(&p->ready, &c->ready);
    if (p->work.at_ns == 0)
        loop_timer_set(p->loop, &p->work, 0);
}

/* --- from the host to the guest -------------------------------------------------------------- */

/* Sends what the guest has not taken yet. True if nothing is left. */
static bool conn_flush(struct vsock_conn *c)
{
    if (buf_len(&c->out) > 0)
        buf_consume(&c->out, vsock_send_buf(c->stream, buf_head(&c->out), buf_len(&c->out)));
    if (buf_len(&c->out) > 0)
        return false;
    buf_shrink(&c->out);
    return true;
}

/* Moves one chunk. False: the connection is gone. */
static bool conn_pump(struct vsock_conn *c)
{
    struct vsock_ports *p = c->p;
    if (!conn_flush(c))
        return true; /* on_writable() continues */
    if (c->readable && !c->host_eof) {
        ssize_t k = recv(c->src.fd, p->chunk, sizeof(p->chunk), MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN && errno != EINTR) {
            conn_finish(c, true);
            return false;
        }
        c->readable = k > 0;
        c->host_eof = k == 0;
        size_t n = k > 0 ? (size_t)k : 0, sent = n ? vsock_send_buf(c->stream, p->chunk, n) : 0;
        if (sent < n && buf_append(&c->out, p->chunk + sent, n - sent) < 0) {
            conn_finish(c, true);
            return false;
        }
        if (c->readable && sent == n)
            make_ready(c);
    }
    if (c->host_eof && buf_len(&c->out) == 0 && !c->told_eof) {
        c->told_eof = true;
        if (c->guest_eof || c->deaf) {
            conn_finish(c, false);
            return false;
        }
        vsock_shutdown(c->stream, VSOCK_SHUT_SEND);
    }
    return true;
}

static void on_work(struct loop_timer *t)
{
    struct vsock_ports *p = CONTAINER_OF(t, struct vsock_ports, work);
    struct node turn; /* those that are ready now; one with more to do is queued after them */
    loop_timer_off(p->loop, t);
    node_init(&turn);
    while (node_linked(&p->ready)) {
        struct node *n = p->ready.next;
        node_unlink(n);
        node_append(&turn, n);
    }
    while (node_linked(&turn)) {
        struct vsock_conn *c = CONTAINER_OF(turn.next, struct vsock_conn, ready);
        node_unlink(&c->ready);
        if (c->stream && c->src.fd >= 0)
            (void)conn_pump(c);
    }
}

/* --- from the guest to the host -------------------------------------------------------------- */

static size_t on_data(struct vsock_stream *s, void *ctx, const void *data, size_t n)
{
    struct vsock_conn *c = ctx;
    if (c->deaf)
        return n;
    if (c->src.fd < 0)
        return 0; /* the stream keeps it until there is a connection */
    ssize_t k = send(c->src.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k >= 0)
        return (size_t)k;
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
        return 0;
    c->deaf = true; /* what it has sent still goes to the guest */
    c->readable = true;
    make_ready(c);
    return n;
}

static void on_writable(struct vsock_stream *s, void *ctx)
{
    make_ready(ctx);
}

static void on_peer_shutdown(struct vsock_stream *s, void *ctx)
{
    struct vsock_conn *c = ctx;
    c->guest_eof = true;
    if (c->src.fd >= 0)
        (void)shutdown(c->src.fd, SHUT_WR);
    if (c->told_eof)
        conn_finish(c, false);
}

static void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct vsock_conn *c = ctx;
    c->stream = NULL;
    if (c->src.fd >= 0)
        conn_free(c); /* otherwise its slot waits for the connector's answer */
}

static const struct vsock_stream_ops stream_ops = {
    .data = on_data,
    .writable = on_writable,
    .peer_shutdown = on_peer_shutdown,
    .closed = on_closed,
};

/* --- the host's end -------------------------------------------------------------------------- */

/* Edge-triggered, so that an end of file that cannot be passed on yet does not keep waking us. */
static void on_host(struct loop_src *src, uint32_t events)
{
    struct vsock_conn *c = CONTAINER_OF(src, struct vsock_conn, src);
    struct vsock_ports *p = c->p;
    uint32_t slot = c->slot;
    if ((events & EPOLLOUT) && vsock_held(c->stream) > 0)
        vsock_resume(c->stream);
    if (p->conn[slot] != c)
        return; /* those were its last bytes */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        c->readable = true;
        make_ready(c);
    }
}

static void conn_open(struct vsock_conn *c, int fd)
{
    struct vsock_ports *p = c->p;
    uint32_t slot = c->slot;
    c->src = (struct loop_src){.fd = fd, .fn = on_host};
    if (loop_add(p->loop, &c->src, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0) {
        c->src.fd = -1;
        close_fd(&fd);
        conn_finish(c, true);
        return;
    }
    vsock_answer(c->stream);
    vsock_resume(c->stream); /* the guest may have sent something already */
    if (p->conn[slot] == c && c->guest_eof)
        (void)shutdown(fd, SHUT_WR);
}

static void on_connector(struct loop_src *src, uint32_t events)
{
    struct vsock_ports *p = CONTAINER_OF(src, struct vsock_ports, connector);
    uint32_t slot;
    int fd;
    int r = connector_answer(src->fd, &slot, &fd);
    if (r < 0) {
        loop_del(p->loop, src);
        p->lost(p->ctx);
    }
    if (r <= 0)
        return;
    struct vsock_conn *c = slot < VSOCK_PORTS_CONNS_MAX ? p->conn[slot] : NULL;
    if (!c || c->src.fd >= 0) { /* it was not asked for */
        close_fd(&fd);
    } else if (fd < 0 || !c->stream) {
        p->refused += fd < 0;
        close_fd(&fd);
        conn_finish(c, true);
    } else {
        conn_open(c, fd);
    }
}

static int refuse(struct vsock_ports *p, int why)
{
    p->refused++;
    return why;
}

static int on_call(struct vsock_stream *s, void *ctx)
{
    const struct vsock_port *port = ctx;
    struct vsock_ports *p = port->owner;
    uint32_t slot = 0;
    while (slot < VSOCK_PORTS_CONNS_MAX && p->conn[slot])
        slot++;
    if (slot == VSOCK_PORTS_CONNS_MAX || p->connector.fd < 0)
        return refuse(p, -EMFILE);
    AUTO_FREE struct vsock_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return refuse(p, -ENOMEM);
    int r = connector_ask(p->connector.fd, slot, port->index);
    if (r < 0)
        return refuse(p, r);
    c->p = p;
    c->slot = slot;
    c->stream = s;
    c->src.fd = -1;
    node_init(&c->ready);
    buf_init(&c->out, VSOCK_PORTS_CHUNK);
    vsock_set_ops(s, &stream_ops, c);
    p->conn[slot] = steal_ptr(&c);
    p->n_conns++;
    return VSOCK_LATER;
}

int vsock_ports_init(struct vsock_ports *p, struct loop *l, struct virtio_dev *vsock,
                     const struct spec_vsocks *list, int connector, void (*lost)(void *ctx),
                     void *ctx)
{
    *p = (struct vsock_ports){.loop = l,
                              .connector = {.fd = connector, .fn = on_connector},
                              .work = {.fn = on_work},
                              .lost = lost,
                              .ctx = ctx};
    node_init(&p->ready);
    int r = loop_add(l, &p->connector, EPOLLIN);
    for (size_t i = 0; r == 0 && i < list->n; i++) {
        p->port[i] = (struct vsock_port){.owner = p, .index = (uint32_t)i};
        r = vsock_listen(vsock, list->v[i].port, on_call, &p->port[i]);
    }
    return r;
}

void vsock_ports_end(struct vsock_ports *p)
{
    for (unsigned i = 0; i < VSOCK_PORTS_CONNS_MAX; i++)
        if (p->conn[i])
            conn_finish(p->conn[i], true);
    loop_timer_off(p->loop, &p->work);
    loop_del(p->loop, &p->connector);
}
