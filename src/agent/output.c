/* From the command's pipes (or terminal) to the stream.
 *
 * Bulk output is not copied: several frames' worth is read with room left for the headers, the
 * headers are filled in, and the whole is sent. Only what the stream does not accept at once is
 * kept, and then no more is read. Small output is instead gathered with the frames around it, so
 * that a short command costs one send.
 */
#include "agent/session.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FRAME = PROTO_HDR_LEN + PROTO_DATA_MAX };

/* --- the stream --- */

/* Sends what is waiting, then p; keeps the rest. */
static void send_after_waiting(struct session *s, const uint8_t *p, size_t n)
{
    size_t waiting = buf_len(&s->tx);
    struct iovec iov[2] = {{buf_head(&s->tx), waiting}, {(void *)(uintptr_t)p, n}};
    struct msghdr m = {.msg_iov = waiting ? iov : iov + 1, .msg_iovlen = waiting && n ? 2 : 1};
    if (waiting && !n)
        m.msg_iov = iov;
    ssize_t r = sendmsg(s->sock.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (r < 0 && errno != EAGAIN && errno != EINTR) {
        s->lost = true;
        return;
    }
    size_t sent = r > 0 ? (size_t)r : 0;
    size_t old = MIN(sent, waiting);
    buf_consume(&s->tx, old);
    sent -= old;
    if (sent == n)
        return;
    /* TX_LIMIT has room for the whole scratch memory besides the small frames: this only fails when
     * out of memory. */
    if (buf_append(&s->tx, p + sent, n - sent) < 0)
        s->lost = true;
}

void session_flush(struct session *s)
{
    if (buf_len(&s->tx))
        send_after_waiting(s, NULL, 0);
}

/* --- the pipes --- */

static void on_output(struct loop_src *src, uint32_t events)
{
    struct outlet *o = CONTAINER_OF(src, struct outlet, src);
    o->readable = true;
    if (events & EPOLLHUP)
        o->hup = true;
    server_wake(o->s->srv, o->s);
}

void session_outlet_init(struct session *s, int i, int fd, uint16_t type)
{
    struct outlet *o = &s->out[i];
    *o = (struct outlet){.src = {.fd = fd, .fn = on_output}, .s = s, .type = type};
    if (loop_add(&s->srv->loop, &o->src, EPOLLIN | EPOLLET) < 0)
        s->lost = true;
}

static void give_back(struct outlet *o)
{
    if (o->large)
        o->s->srv->bulk_left += PIPE_BULK;
    o->large = false;
}

static void outlet_end(struct outlet *o)
{
    give_back(o);
    loop_close(&o->s->srv->loop, &o->src);
    o->readable = false;
}

/* Turns n bytes, read with room before each frame's worth, into frames; returns their length. */
static size_t frame_up(uint8_t *p, size_t n, uint16_t type)
{
    size_t total = 0;
    while (n) {
        size_t len = MIN(n, (size_t)PROTO_DATA_MAX);
        proto_header_write(p + total, type, len);
        total += PROTO_HDR_LEN + len;
        n -= len;
    }
    return total;
}

static ssize_t read_frames(struct outlet *o, size_t *asked)
{
    struct iovec iov[SERVER_FRAMES];
    int frames = o->bulk ? SERVER_FRAMES : 1;
    for (int i = 0; i < frames; i++)
        iov[i] =
            (struct iovec){o->s->srv->scratch + (size_t)i * FRAME + PROTO_HDR_LEN, PROTO_DATA_MAX};
    *asked = (size_t)frames * PROTO_DATA_MAX;
    ssize_t n = readv(o->src.fd, iov, frames);
    return n < 0 ? -errno : n;
}

/* Nothing more for now. A terminal that no process has open reports EIO, but one may open it again
 * while the main process lives. */
static void outlet_empty(struct outlet *o, int error)
{
    if (error == EAGAIN || error == EINTR || (error == EIO && o->s->state == SESS_RUNNING))
        o->readable = error == EINTR;
    else
        outlet_end(o);
}

/* Each small write would wake us and cost two context switches. Yielding once lets the writer
 * continue until its time slice ends or the pipe is full. */
static void let_pile_up(struct outlet *o)
{
    struct server *srv = o->s->srv;
    if (o->trickles && !srv->yielded) {
        srv->yielded = true;
        (void)sched_yield();
    }
}

static void note_amount(struct outlet *o, size_t got, size_t asked)
{
    o->total += got;
    o->trickles = o->bulk && got < asked;
    if (o->bulk || (got < PROTO_DATA_MAX && o->total < BULK_AFTER))
        return;
    o->bulk = true;
    /* Fewer context switches; but a pipe that is not read ties up its memory. */
    struct server *srv = o->s->srv;
    if (!o->s->tty && srv->bulk_left >= PIPE_BULK &&
        fcntl(o->src.fd, F_SETPIPE_SZ, PIPE_BULK) >= 0) {
        o->large = true;
        srv->bulk_left -= PIPE_BULK;
    }
}

static void outlet_pull(struct outlet *o)
{
    struct session *s = o->s;
    size_t asked;
    let_pile_up(o);
    ssize_t n = read_frames(o, &asked);
    if (n <= 0) {
        outlet_empty(o, (int)-n);
        return;
    }
    size_t got = (size_t)n;
    o->owed -= MIN(o->owed, got);
    note_amount(o, got, asked);
    if (got < asked && !s->tty) {
        /* A short read has emptied the pipe: the next byte makes a new event. If there is no
         * writer left, this was the end. */
        o->readable = false;
        if (o->hup)
            outlet_end(o);
    }
    size_t total = frame_up(s->srv->scratch, got, o->type);
    if (total + buf_len(&s->tx) <= TX_SMALL && buf_append(&s->tx, s->srv->scratch, total) == 0)
        return;
    send_after_waiting(s, s->srv->scratch, total);
}

void session_pull_output(struct session *s)
{
    for (size_t i = 0; i < ARRAY_LEN(s->out); i++)
        if (s->out[i].readable && !s->lost && buf_len(&s->tx) < TX_SMALL)
            outlet_pull(&s->out[i]);
}

bool session_output_waits(const struct session *s)
{
    return (s->out[0].readable || s->out[1].readable) && buf_len(&s->tx) < TX_SMALL;
}

/* A pipe that other processes hold open may never end: only what is in it now is owed. A terminal
 * that was empty is read again, since the exit may have closed it. */
void session_note_owed(struct session *s)
{
    for (size_t i = 0; i < ARRAY_LEN(s->out); i++) {
        struct outlet *o = &s->out[i];
        int n = 0;
        if (o->src.fd >= 0 && s->tty)
            o->readable = true;
        if (o->src.fd >= 0 && !o->hup && ioctl(o->src.fd, FIONREAD, &n) == 0 && n > 0)
            o->owed = (size_t)n;
    }
}

static bool outlet_done(const struct outlet *o, bool linger_over)
{
    if (o->src.fd < 0)
        return true;
    /* What is left in a closed pipe is finite, and all of it is owed. */
    return !o->hup && linger_over && o->owed == 0;
}

bool session_output_done(const struct session *s)
{
    return outlet_done(&s->out[0], s->linger_over) && outlet_done(&s->out[1], s->linger_over);
}

void session_close_output(struct session *s, bool keep)
{
    for (size_t i = 0; i < ARRAY_LEN(s->out); i++) {
        struct outlet *o = &s->out[i];
        int fd = o->src.fd;
        if (fd < 0)
            continue;
        if (!keep || s->tty || o->hup) {
            outlet_end(o);
        } else {
            give_back(o);
            loop_del(&s->srv->loop, &o->src);
            server_drain(s->srv, fd);
        }
    }
}
