#include "monitor/relay_client.h"

#include "util/cleanup.h"
#include "util/parse.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:monitor sendto close epoll_ctl */

static void client_detach(struct relay_client *c);

/* --- background ----------------------------------------------------------------------------- */

static void note_background(struct relay_client *c)
{
    if (c->relay->ev->background && c->note.command.started_ns)
        c->relay->ev->background(c->relay->ctx, &c->note.command);
}

static void answer_waiters(struct relay *r, const struct background_command *ended)
{
    for (struct node *n = r->clients.next, *next; n != &r->clients; n = next) {
        struct relay_client *c = CONTAINER_OF(n, struct relay_client, node);
        struct proto_writer w;
        next = n->next;
        if (c->state != CLIENT_ANSWER || c->wait_id != ended->id)
            continue;
        proto_begin(&w, &c->out, PROTO_OK);
        if (ended->exit_code != BACKGROUND_UNKNOWN)
            proto_u32(&w, F_CODE, (uint32_t)ended->exit_code);
        (void)proto_end(&w);
        client_finish(c); /* never the client whose session ends: it is not waiting */
    }
}

static void end_background(struct relay_client *c)
{
    if (!c->background || !c->note.command.started_ns)
        return;
    c->note.command.ended = true;
    c->note.command.ended_ns = realtime_ns();
    note_background(c);
    answer_waiters(c->relay, &c->note.command);
}

/* --- ends ----------------------------------------------------------------------------------- */

static void end_session(struct relay_client *c)
{
    if (!c->in_session)
        return;
    c->in_session = false;
    end_background(c);
    assert(c->relay->n_sessions > 0);
    c->relay->n_sessions--;
    c->relay->ev->sessions_changed(c->relay->ctx, c->relay->n_sessions);
}

static void drop_socket(struct relay_client *c)
{
    int fd = c->src.fd;
    loop_del(c->relay->loop, &c->src);
    close_fd(&fd);
}

void client_free(struct relay_client *c)
{
    struct relay *r = c->relay;
    drop_socket(c);
    if (c->stream) {
        struct vsock_stream *s = c->stream;
        c->stream = NULL;
        if (c->note.exited)
            vsock_close(s);
        else
            vsock_abort(s); /* invariant 1 */
    }
    node_unlink(&c->node);
    assert(r->n_clients > 0);
    r->n_clients--;
    relay_resume_listening(r);
    end_session(c);
    close_fd(&c->sent_fd);
    buf_free(&c->hello);
    buf_free(&c->in);
    buf_free(&c->out);
    free(c);
}

void client_lost(struct relay_client *c)
{
    if (c->leash) {
        struct relay *r = c->relay;
        client_free(c);
        r->ev->stop(r->ctx, RELAY_LEASH_MS);
        return;
    }
    if (c->background && c->state == CLIENT_SESSION && c->stream && !c->note.exited &&
        c->note.command.started_ns && c->forward == 0)
        client_detach(c);
    else
        client_free(c);
}

void client_finish(struct relay_client *c)
{
    c->state = CLIENT_DONE;
    (void)client_flush(c);
}

void client_refuse_as(struct relay_client *c, enum proto_fail kind, int code, const char *text)
{
    (void)proto_put_fail(&c->out, kind, code, text);
    client_finish(c);
}

void client_refuse(struct relay_client *c, enum proto_fail kind, const char *text)
{
    client_refuse_as(c, kind, 0, text);
}

/* --- guest to client ------------------------------------------------------------------------ */

/* Like command_scan(). */
static ssize_t note_output(struct relay_client *c, const uint8_t *p, size_t n)
{
    bool began = c->note.command.started_ns != 0;
    ssize_t used = command_scan(&c->note, p, n);
    if (!began && c->background)
        note_background(c);
    return used;
}

/* The command ends with its stream. c may be gone afterwards. */
static void end_for_output(struct relay_client *c)
{
    struct vsock_stream *s = c->stream;
    char most[32], text[160];
    format_bytes(c->relay->output_max, most, sizeof(most));
    (void)snprintf(text, sizeof(text),
                   "a command wrote more than %s, the most that this sandbox allows (--max-output)",
                   most);
    exec_log_printf(c->relay->log, "%s", text);
    exec_log_flush(c->relay->log);
    c->note.command.exit_code = COMMAND_KILLED;
    c->stream = NULL;
    vsock_abort(s);
    if (c->detached)
        client_free(c);
    else
        client_refuse(c, PROTO_FAIL_OUTPUT, text);
}

/* Takes all that fits: the rest is only offered again when `out` drains, so bytes left behind with
 * an empty `out` would stay there forever. */
static size_t on_guest_data(struct vsock_stream *stream, void *ctx, const void *p, size_t n)
{
    struct relay_client *c = ctx;
    size_t taken = 0;
    assert(c->state == CLIENT_SESSION && c->stream == stream);
    while (taken < n) {
        assert(buf_len(&c->out) <= CLIENT_OUT_MAX);
        size_t k = MIN(n - taken, CLIENT_OUT_MAX - buf_len(&c->out));
        uint8_t *to = k ? buf_reserve(&c->out, k) : NULL;
        if (!to && buf_len(&c->out) == 0) { /* out of memory, and nothing will drain */
            client_free(c);
            return n;
        }
        if (!to)
            break;
        memcpy(to, (const uint8_t *)p + taken, k); /* invariant 2 */
        taken += k;
        ssize_t used = note_output(c, to, k);
        if (used < 0) {
            client_free(c);
            return n;
        }
        buf_commit(&c->out, (size_t)used);
        if (command_is_over(&c->note)) {
            end_for_output(c);
            return n;
        }
        if (c->detached)
            buf_reset(&c->out); /* it is logged; nothing else reads it */
        else if (!client_flush(c))
            return n;
    }
    return taken;
}

bool client_flush(struct relay_client *c)
{
    while (buf_len(&c->out) && c->src.fd >= 0) {
        ssize_t k =
            send(c->src.fd, buf_head(&c->out), buf_len(&c->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0) {
            buf_consume(&c->out, (size_t)k);
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN)
            break;
        client_lost(c);
        return false;
    }
    if (buf_len(&c->out) == 0 && c->state == CLIENT_DONE) {
        client_free(c);
        return false;
    }
    uint32_t want = (c->src.events & ~(uint32_t)EPOLLOUT) | (buf_len(&c->out) ? EPOLLOUT : 0);
    (void)loop_mod(c->relay->loop, &c->src, want);
    return true;
}

void client_writable(struct relay_client *c)
{
    if (client_flush(c) && buf_len(&c->out) <= CLIENT_OUT_MAX / 2 && c->stream &&
        vsock_held(c->stream))
        vsock_resume(c->stream);
}

/* --- client to guest ------------------------------------------------------------------------ */

/* What the stream buffers for it is discarded, which may reveal that its command has ended: c may
 * be gone afterwards. */
static void client_detach(struct relay_client *c)
{
    c->detached = true;
    if (!c->background) {
        c->background = true;
        note_background(c);
    }
    drop_socket(c);
    buf_reset(&c->in);
    buf_reset(&c->out);
    assert(c->forward == 0);
    if (c->stream && vsock_held(c->stream))
        vsock_resume(c->stream);
}

/* Passes on what is in `in`, frame by frame. False: c may be gone. */
static bool forward_frames(struct relay_client *c)
{
    while (c->stream && buf_len(&c->in)) {
        if (c->forward == 0) {
            if (buf_len(&c->in) < PROTO_HDR_LEN)
                return true;
            struct proto_header h;
            if (!proto_header_read(buf_head(&c->in), &h)) {
                client_free(c);
                return false;
            }
            if (h.type == PROTO_DETACH) {
                client_detach(c);
                return false;
            }
            c->forward = PROTO_HDR_LEN + h.len;
        }
        size_t n = MIN(buf_len(&c->in), c->forward);
        size_t took = vsock_send_buf(c->stream, buf_head(&c->in), n);
        assert(took <= n);
        buf_consume(&c->in, took);
        c->forward -= (uint32_t)took;
        if (took < n)
            return true; /* on_writable() continues */
    }
    return true;
}

/* False while HELLO has to wait: many streams at once may use up the guest's buffers. */
static bool send_hello(struct relay_client *c)
{
    size_t took = 0;
    if (c->stream && buf_len(&c->hello))
        took = vsock_send_buf(c->stream, buf_head(&c->hello), buf_len(&c->hello));
    buf_consume(&c->hello, took);
    return buf_len(&c->hello) == 0;
}

void client_pump(struct relay_client *c)
{
    assert(c->state == CLIENT_SESSION);
    if (c->connected && send_hello(c) && !forward_frames(c))
        return;
    uint32_t in = buf_len(&c->in) < CLIENT_IN_MAX ? EPOLLIN : 0;
    (void)loop_mod(c->relay->loop, &c->src, (c->src.events & ~(uint32_t)EPOLLIN) | in);
}

static void on_connected(struct vsock_stream *s, void *ctx)
{
    struct relay_client *c = ctx;
    if (proto_put_hello(&c->hello) < 0) { /* out of memory */
        client_free(c);
        return;
    }
    c->connected = true;
    client_pump(c);
}

static void on_writable(struct vsock_stream *s, void *ctx)
{
    client_pump(ctx);
}

/* The session lasts until its client has all of its output, so that a sandbox that stops with its
 * last command does not lose any. */
static void stream_over(struct relay_client *c)
{
    char text[96];
    if (c->detached) {
        client_free(c);
        return;
    }
    if (c->connected) {
        client_finish(c);
        return;
    }
    /* The guest rejected it. Its request was never sent, so it may be repeated. */
    (void)snprintf(text, sizeof(text), "the guest accepts no more commands now (%u are running)",
                   c->relay->n_sessions - 1);
    client_refuse(c, PROTO_FAIL_STATE, c->relay->open ? text : RELAY_GOING_DOWN);
}

static void on_peer_shutdown(struct vsock_stream *s, void *ctx)
{
    struct relay_client *c = ctx;
    c->stream = NULL;
    vsock_close(s);
    stream_over(c);
}

static void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct relay_client *c = ctx;
    c->stream = NULL;
    stream_over(c);
}

const struct vsock_stream_ops client_stream_ops = {
    .connected = on_connected,
    .data = on_guest_data,
    .writable = on_writable,
    .peer_shutdown = on_peer_shutdown,
    .closed = on_closed,
};
