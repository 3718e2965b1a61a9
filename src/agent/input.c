/* From the stream to the command: frames in, standard input on.
 *
 * Input is written to the pipe straight from the receive buffer; only what does not fit into the
 * pipe is kept, and only then is the pipe watched for room.
 */
#include "agent/session.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

/* --- standard input --- */

static void on_input_room(struct loop_src *src, uint32_t events)
{
    struct inlet *in = CONTAINER_OF(src, struct inlet, src);
    in->writable = true;
    server_wake(in->s->srv, in->s);
}

void session_inlet_init(struct session *s, int fd)
{
    s->in = (struct inlet){.src = {.fd = fd, .fn = on_input_room}, .s = s, .writable = true};
    buf_init(&s->in.buf, PROTO_STDIN_WINDOW);
}

void session_close_stdin(struct session *s)
{
    if (s->in.src.fd < 0)
        return;
    if (s->in.armed)
        loop_close(&s->srv->loop, &s->in.src);
    close_fd(&s->in.src.fd);
    s->in.passed_on += buf_len(&s->in.buf); /* dropped, but acknowledged */
    buf_free(&s->in.buf);
}

static void wait_for_room(struct session *s)
{
    struct inlet *in = &s->in;
    in->writable = false;
    if (in->armed)
        return;
    /* Rarely needed, so neither the watch nor the larger pipe is set up earlier. */
    if (!s->tty)
        (void)fcntl(in->src.fd, F_SETPIPE_SZ, PROTO_STDIN_WINDOW);
    in->armed = loop_add(&s->srv->loop, &in->src, EPOLLOUT | EPOLLET) == 0;
    if (!in->armed)
        session_close_stdin(s);
}

/* Returns how much of p was passed on. */
static size_t pass_on(struct session *s, const uint8_t *p, size_t n)
{
    struct inlet *in = &s->in;
    size_t done = 0;
    while (done < n && in->writable && in->src.fd >= 0) {
        ssize_t r = write(in->src.fd, p + done, n - done);
        if (r > 0) {
            done += (size_t)r;
            in->mid_line = p[done - 1] != '\n';
        } else if (r < 0 && errno == EAGAIN) {
            wait_for_room(s);
        } else if (r < 0 && errno == EINTR) {
            continue;
        } else {
            session_close_stdin(s); /* the command has closed it */
        }
    }
    in->passed_on += done;
    return done;
}

/* On a terminal, end of file is a character, which has to be typed twice in the middle of a line,
 * and only works in canonical mode. */
static void end_terminal_input(struct session *s)
{
    struct termios t;
    s->in.eof = false;
    if (tcgetattr(s->in.src.fd, &t) < 0 || !(t.c_lflag & ICANON))
        return;
    uint8_t twice[2] = {t.c_cc[VEOF], t.c_cc[VEOF]};
    (void)!write(s->in.src.fd, twice, s->in.mid_line ? 2 : 1);
}

static void acknowledge(struct session *s)
{
    struct inlet *in = &s->in;
    bool due = in->passed_on >= ACK_BATCH || (in->passed_on && buf_len(&in->buf) == 0);
    if (!due || buf_len(&s->tx) >= TX_SMALL)
        return;
    struct proto_writer w;
    proto_begin(&w, &s->tx, PROTO_STDIN_ACK);
    proto_u64(&w, F_BYTES, in->passed_on);
    if (proto_end(&w) == 0)
        in->passed_on = 0;
}

void session_push_stdin(struct session *s)
{
    struct inlet *in = &s->in;
    if (s->state != SESS_RUNNING)
        return;
    if (buf_len(&in->buf))
        buf_consume(&in->buf, pass_on(s, buf_head(&in->buf), buf_len(&in->buf)));
    if (buf_len(&in->buf) == 0) {
        buf_shrink(&in->buf);
        if (in->eof && in->src.fd >= 0 && s->tty)
            end_terminal_input(s);
        else if (in->eof)
            session_close_stdin(s);
    }
    acknowledge(s);
}

/* false: no room for it now (invariant 4). */
static bool take_stdin(struct session *s, const struct proto_frame *f)
{
    struct inlet *in = &s->in;
    if (in->src.fd < 0 || in->eof) {
        in->passed_on += f->len;
        return true;
    }
    if (buf_len(&in->buf) + f->len > PROTO_STDIN_WINDOW)
        return false;
    size_t done = buf_len(&in->buf) ? 0 : pass_on(s, f->data, f->len);
    if (in->src.fd < 0)
        in->passed_on += f->len - done;
    else if (buf_append(&in->buf, f->data + done, f->len - done) < 0)
        s->lost = true; /* out of memory */
    return true;
}

/* --- frames --- */

static void check_hello(struct session *s, const struct proto_frame *f)
{
    if (proto_is_hello(f))
        s->state = SESS_EXEC;
    else
        session_fail(s, PROTO_FAIL_VERSION, EPROTO,
                     "the sandbox's agent speaks another protocol version");
}

static void send_signal(const struct session *s, const struct proto_frame *f)
{
    uint64_t sig = proto_find_num(f, F_SIGNAL, 0);
    bool alone = proto_find_num(f, F_ALONE, 0) == 1;
    if (s->pid > 0 && sig > 0 && sig < (uint64_t)_NSIG)
        (void)kill(alone ? s->pid : -s->pid, (int)sig);
}

static void resize(const struct session *s, const struct proto_frame *f)
{
    struct winsize ws = {.ws_row = (unsigned short)proto_find_num(f, F_ROWS, 24),
                         .ws_col = (unsigned short)proto_find_num(f, F_COLS, 80)};
    if (s->tty && s->out[0].src.fd >= 0)
        (void)ioctl(s->out[0].src.fd, TIOCSWINSZ, &ws);
}

/* false: the frame and everything after it (the n bytes at `rest`) have to wait. */
static bool take_frame(struct session *s, const struct proto_frame *f, const uint8_t *rest,
                       size_t n)
{
    if (s->state == SESS_HELLO) {
        check_hello(s, f);
        return true;
    }
    if (s->state == SESS_EXEC) {
        if (f->type == PROTO_EXEC)
            session_start(s, f);
        else if (f->type == PROTO_FILES)
            session_start_files(s, f, rest, n);
        else if (f->type == PROTO_CONTAINER && s->srv->containers.start)
            s->srv->containers.start(s, f);
        else if (f->type == PROTO_CONTAINER)
            session_fail(s, PROTO_FAIL_STATE, EINVAL, "this sandbox is not a pod");
        return true;
    }
    switch (f->type) {
    case PROTO_STDIN:
        return take_stdin(s, f);
    case PROTO_STDIN_EOF:
        s->in.eof = true;
        return true;
    case PROTO_SIGNAL:
        send_signal(s, f);
        return true;
    case PROTO_RESIZE:
        resize(s, f);
        return true;
    default:
        return true; /* of a later minor version */
    }
}

/* Returns false when a frame has to wait. */
static bool take_frames(struct session *s, struct buf *in)
{
    struct proto_frame f;
    int got;
    while (!s->lost && (got = proto_peek(in, &f)) != 0) {
        if (got < 0) {
            s->lost = true;
            return true;
        }
        size_t whole = PROTO_HDR_LEN + f.len;
        if (!take_frame(s, &f, buf_head(in) + whole, buf_len(in) - whole))
            return false;
        if (s->state == SESS_FILES) { /* the child has a copy of the rest */
            buf_reset(in);
            return true;
        }
        proto_consume(in, &f);
    }
    return true;
}

/* A frame that has begun is completed in s->rx; otherwise bytes are received into the scratch
 * memory and frames are taken from there. */
static ssize_t receive_once(struct session *s, bool *room)
{
    bool partial = buf_len(&s->rx) > 0;
    uint8_t *to = partial ? buf_reserve(&s->rx, RX_CHUNK) : s->srv->scratch;
    size_t max = partial ? RX_CHUNK : SERVER_SCRATCH;
    if (!to && partial) { /* close to the limit: the rest of the frame always fits */
        max = s->rx.limit - buf_len(&s->rx);
        to = max ? buf_reserve(&s->rx, max) : NULL;
    }
    if (!to)
        return -ENOMEM;
    ssize_t n = recv(s->sock.fd, to, max, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 ? -errno : 0;
    if (partial) {
        buf_commit(&s->rx, (size_t)n);
        *room = take_frames(s, &s->rx);
    } else {
        struct buf view = {.data = to, .cap = (size_t)n, .tail = (size_t)n, .limit = (size_t)n};
        *room = take_frames(s, &view);
        if (!s->lost && buf_append(&s->rx, buf_head(&view), buf_len(&view)) < 0)
            return -ENOMEM;
    }
    buf_shrink(&s->rx);
    return n;
}

void session_receive(struct session *s)
{
    bool room = true;
    if (buf_len(&s->rx)) { /* frames that had to wait */
        room = take_frames(s, &s->rx);
        buf_shrink(&s->rx);
    }
    ssize_t n = 0;
    if (room && s->readable && !s->lost) {
        n = receive_once(s, &room);
        if (n == -EAGAIN || n == -EINTR)
            s->readable = n == -EINTR;
        else if (n <= 0)
            s->lost = true;
        else if (n < RX_CHUNK && !s->hup)
            s->readable = false; /* a short read: the next byte makes a new event */
    }
    s->stalled = !room;
    if (s->stalled && s->hup)
        s->lost = true; /* nothing is left to wait for the input */
}
