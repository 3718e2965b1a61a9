/* How it works
 *
 * One loop polls the connection, stdin, a signalfd and, while one of them is full, stdout or
 * stderr. poll, because epoll refuses regular files.
 *
 * Invariants
 *   1. Nothing here waits on anything but that poll (session_io.h), so a blocked reader of our
 *      stdout never holds up a signal or stdin.
 *   2. Output goes from the receive buffer to its descriptor without another copy. While an
 *      output is full (`blocked`) the connection is not read: memory is bounded, and the pressure
 *      reaches the command through the streams in between.
 *   3. Frames are handled in order, so everything sent before EXIT is written before we return.
 *   4. At most PROTO_STDIN_WINDOW bytes of stdin are unacknowledged, and `tx` holds at most one
 *      chunk of it: a SIGNAL is never far from the front.
 *   5. What was sent is kept until the command has started: a sandbox that was just going down has
 *      it resent (session.h, reconnect).
 *   6. Every byte received is hostile. A frame is used only after its length was checked, numbers
 *      are checked against their range, text is defused before it is shown. What breaks the
 *      protocol ends the session.
 */
#include "client/session.h"

#include "client/exec_frame.h"
#include "client/frame_name.h"
#include "client/session_io.h"
#include "client/terminal.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/utf8.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RX_READ = 256 * 1024,
    RX_MAX = RX_READ + PROTO_HDR_LEN + PROTO_DATA_MAX,
    TX_MAX = PROTO_MSG_MAX + 2 * PROTO_STDIN_WINDOW,
    IOV_MAX_RUN = 64,
    KEYS_MAX = 8,
    BACKSTOP_MS = 5000,          /* what the agent gets beyond the time limit */
    LEAVE_MS = 1000,             /* for DETACH to arrive */
    BACKGROUND_RECHECK_MS = 250, /* to check whether the terminal is ours again */
    EXIT_TIMEOUT = 124,
    EXIT_NOT_EXECUTABLE = 126,
    EXIT_NOT_FOUND = 127,
    EXIT_SIGNAL_BASE = 128,
};

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

struct session {
    int sock;
    const struct session_request *req;
    struct session_result *res;
    struct err *e;

    struct stdio in, out, err;
    struct buf rx, tx;
    size_t sent;  /* of tx; 0 once the command has started */
    bool again;   /* there is a new connection: what is in rx came from the old one */
    bool tx_dead; /* the peer no longer reads; what it sent before may still be there */

    /* receiving */
    uint16_t data_type; /* of the current data frame */
    size_t data_left;   /* of its payload */
    struct stdio *blocked;
    bool started;

    /* sending */
    bool stdin_open;
    uint64_t unacked;
    uint8_t keys[KEYS_MAX]; /* the detach sequence; n_keys 0 = none */
    size_t n_keys;
    size_t keys_seen; /* its first bytes, held back */

    int sigfd;
    sigset_t old_mask;
    struct sigaction old_sigpipe;

    uint64_t deadline_ns; /* 0 = none */
    uint64_t blocked_since_ns;

    bool done;
    int ret;
};

static void finish(struct session *s, int ret)
{
    assert(!s->done);
    s->done = true;
    s->ret = ret;
}

static void finish_exit(struct session *s, int code)
{
    s->res->exit_code = code;
    finish(s, 0);
}

static void finish_timeout(struct session *s)
{
    char limit[32];
    format_duration(s->req->timeout_ms, limit, sizeof(limit));
    (void)err_set(s->e, ETIMEDOUT, "exec timed out after %s", limit);
    s->res->timed_out = true;
    finish_exit(s, EXIT_TIMEOUT);
}

static void lost(struct session *s)
{
    finish(s, err_set(s->e, ECONNRESET, "sandbox ended while the command ran"));
}

static void violation(struct session *s, const char *what)
{
    finish(s, err_set(s->e, EPROTO, "the sandbox broke the protocol: %s", what));
}

/* --- sending --- */

/* Bytes that wait to be sent. */
static size_t tx_waiting(const struct session *s)
{
    assert(s->sent <= buf_len(&s->tx));
    return s->tx_dead ? 0 : buf_len(&s->tx) - s->sent;
}

/* What was sent need not be kept for resending. */
static void forget_sent(struct session *s)
{
    assert(s->started);
    buf_consume(&s->tx, s->sent);
    s->sent = 0;
}

static void flush_tx(struct session *s)
{
    while (tx_waiting(s)) {
        ssize_t n =
            send(s->sock, buf_head(&s->tx) + s->sent, tx_waiting(s), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            diag_trace("session: sent %zd bytes", n);
            s->sent += (size_t)n;
            if (s->started)
                forget_sent(s);
        } else if (errno == EAGAIN || errno == EINTR) {
            return;
        } else { /* what it sent last is still to be read */
            s->tx_dead = true;
        }
    }
}

static void put_signal(struct session *s, uint32_t signal)
{
    struct proto_writer w;
    proto_begin(&w, &s->tx, PROTO_SIGNAL);
    proto_u32(&w, F_SIGNAL, signal);
    if (s->req->all_signals)
        proto_u32(&w, F_ALONE, 1);
    (void)proto_end(&w); /* no room: the peer has stopped reading, nothing can reach it */
}

static void put_resize(struct session *s)
{
    struct proto_writer w;
    if (!s->req->tty)
        return;
    proto_begin(&w, &s->tx, PROTO_RESIZE);
    exec_frame_size(&w);
    (void)proto_end(&w);
}

/* --- stdin --- */

static bool stdin_in_background(const struct session *s)
{
    if (!s->in.is_tty)
        return false;
    pid_t owner = tcgetpgrp(s->in.fd);
    return owner > 0 && owner != getpgrp();
}

/* Room for held-back keys is kept free, so that releasing them cannot exceed the window. */
static size_t stdin_credit(const struct session *s)
{
    uint64_t used = s->unacked + s->n_keys;
    return used < PROTO_STDIN_WINDOW ? (size_t)(PROTO_STDIN_WINDOW - used) : 0;
}

static bool wants_stdin(const struct session *s)
{
    return s->stdin_open && !s->tx_dead && tx_waiting(s) < PROTO_DATA_MAX && stdin_credit(s) > 0 &&
           buf_len(&s->tx) < TX_MAX - PROTO_HDR_LEN - PROTO_DATA_MAX;
}

/* Checks one byte of input against the detach sequence: true once that is complete. Bytes that turn
 * out not to be part of it go to *to. */
static bool is_detach(struct session *s, uint8_t b, uint8_t **to)
{
    for (;;) {
        if (b == s->keys[s->keys_seen])
            return ++s->keys_seen == s->n_keys;
        if (s->keys_seen == 0) {
            *(*to)++ = b;
            return false;
        }
        size_t drop = 1; /* until what is held is a beginning of the sequence again */
        while (drop < s->keys_seen && memcmp(s->keys, s->keys + drop, s->keys_seen - drop) != 0)
            drop++;
        memcpy(*to, s->keys, drop);
        *to += drop;
        s->keys_seen -= drop;
    }
}

/* Copies n bytes to `to`, which may lie up to n_keys before them, without the detach sequence.
 * Returns how many there are now. */
static size_t filter_keys(struct session *s, uint8_t *to, const uint8_t *from, size_t n,
                          bool *detach)
{
    const uint8_t *start = to;
    for (size_t i = 0; i < n && !*detach; i++)
        *detach = is_detach(s, from[i], &to);
    return (size_t)(to - start);
}

static void leave(struct session *s);

static void on_stdin(struct session *s)
{
    size_t chunk = MIN(stdin_credit(s), (size_t)PROTO_DATA_MAX - KEYS_MAX);
    uint8_t *frame = buf_reserve(&s->tx, PROTO_HDR_LEN + s->n_keys + chunk);
    if (!frame)
        return;
    uint8_t *payload = frame + PROTO_HDR_LEN;
    ssize_t n = stdio_read(&s->in, payload + s->n_keys, chunk);
    if (n == -EAGAIN)
        return;
    if (n <= 0) { /* an error, such as EIO from a hung-up terminal, is also the end */
        s->stdin_open = false;
        (void)proto_put(&s->tx, PROTO_STDIN_EOF, NULL, 0);
        return;
    }
    bool detach = false;
    size_t len = (size_t)n;
    if (s->n_keys)
        len = filter_keys(s, payload, payload + s->n_keys, len, &detach);
    if (len) {
        proto_header_write(frame, PROTO_STDIN, len);
        buf_commit(&s->tx, PROTO_HDR_LEN + len);
        s->unacked += len;
    }
    assert(s->unacked + s->keys_seen <= PROTO_STDIN_WINDOW);
    if (detach)
        leave(s);
}

/* --- leaving while the command goes on --- */

static void discard_input(struct session *s)
{
    buf_reset(&s->rx);
    uint8_t *to = buf_reserve(&s->rx, RX_READ);
    ssize_t n = to ? recv(s->sock, to, RX_READ, MSG_DONTWAIT) : 0;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        s->tx_dead = true;
}

/* Sends DETACH and stays until the peer has seen it (it hangs up): output that arrives meanwhile
 * has to be read from the connection, or the peer might see a reset before our last frame. */
static void leave(struct session *s)
{
    (void)proto_put(&s->tx, PROTO_DETACH, NULL, 0);
    bool sent = false;
    uint64_t until = now_ns() + LEAVE_MS * 1000000ULL;
    while (now_ns() < until && !s->tx_dead) {
        flush_tx(s);
        if (tx_waiting(s) == 0 && !s->tx_dead && !sent) {
            (void)shutdown(s->sock, SHUT_WR);
            sent = true;
        }
        struct pollfd p = {.fd = s->sock, .events = (short)(sent ? POLLIN : POLLIN | POLLOUT)};
        if (poll(&p, 1, 10) > 0 && (p.revents & (POLLIN | POLLHUP | POLLERR)))
            discard_input(s);
    }
    /* `run -d`: a command may be so short that its sandbox has ended before we could leave it. */
    if (!sent && !(s->req->detach && s->tx_dead)) {
        lost(s);
        return;
    }
    s->res->detached = true;
    finish_exit(s, 0);
}

/* --- receiving --- */

static void on_exit_frame(struct session *s, const struct proto_frame *f)
{
    uint64_t code = proto_find_num(f, F_CODE, UINT64_MAX);
    uint64_t sig = proto_find_num(f, F_SIGNAL, UINT64_MAX);
    uint64_t oom = proto_find_num(f, F_OOM, PROTO_OOM_NONE);
    s->res->oom = oom <= PROTO_OOM_OTHER ? (enum proto_oom)oom : PROTO_OOM_NONE;
    if (s->req->timeout_ms && proto_find_num(f, F_TIMED_OUT, 0) == 1) {
        finish_timeout(s);
    } else if (code <= 255) {
        finish_exit(s, (int)code);
    } else if (sig >= 1 && sig <= 64) {
        finish_exit(s, EXIT_SIGNAL_BASE + (int)sig);
    } else {
        violation(s, "no valid exit code");
    }
}

static void set_deadline(struct session *s)
{
    uint64_t ms = s->req->timeout_ms;
    if (ms && ms < UINT64_MAX / 2000000)
        s->deadline_ns = now_ns() + (ms + BACKSTOP_MS) * 1000000ULL;
}

/* The sandbox was going down, or had no room, and has done nothing for us: resends everything,
 * possibly to the restarted one. why: the reason it gave. */
static void try_again(struct session *s, const char *why)
{
    /* Connecting may take a while. Without a raw terminal to restore, signals act as they did before
     * we were connected. */
    sigset_t watched;
    if (!s->n_keys)
        (void)sigprocmask(SIG_SETMASK, &s->old_mask, &watched);
    AUTO_CLOSE int fd = s->req->reconnect(s->req->reconnect_ctx, s->e);
    if (!s->n_keys)
        (void)sigprocmask(SIG_SETMASK, &watched, NULL);
    if (fd < 0) {
        if (fd == -ETIMEDOUT && *why)
            err_hint(s->e, "%s", why);
        finish(s, fd);
    } else if (dup3(fd, s->sock, O_CLOEXEC) < 0) {
        finish(s, err_sys(s->e, errno, "cannot connect again"));
    } else {
        s->sent = 0;
        s->tx_dead = false;
        s->again = true;
        set_deadline(s);
    }
}

static void on_fail_frame(struct session *s, const struct proto_frame *f)
{
    char text[ERR_MSG_MAX / 2];
    proto_find_text(f, F_TEXT, text, sizeof(text));
    utf8_defuse(text);
    uint64_t kind = proto_find_num(f, F_KIND, PROTO_FAIL_OTHER);
    if (s->started && kind == PROTO_FAIL_OUTPUT) {
        (void)err_set(s->e, EFBIG, "%s", text);
        finish_exit(s, EXIT_SIGNAL_BASE + SIGKILL);
        return;
    }
    if (s->started) { /* the sandbox has given up the command */
        (void)err_set(s->e, ECONNRESET, "sandbox ended while the command ran");
        if (*text)
            err_hint(s->e, "%s", text);
        finish(s, -ECONNRESET);
        return;
    }
    if (kind == PROTO_FAIL_STATE && s->req->reconnect) {
        try_again(s, text);
        return;
    }
    int code = s->req->attach                      ? 1
               : kind == PROTO_FAIL_NOT_FOUND      ? EXIT_NOT_FOUND
               : kind == PROTO_FAIL_NOT_EXECUTABLE ? EXIT_NOT_EXECUTABLE
                                                   : 1;
    if (s->req->attach)
        (void)err_set(s->e, ESRCH, "cannot attach to command %u", s->req->attach);
    else
        (void)err_set(s->e, code == EXIT_NOT_FOUND ? ENOENT : EACCES, "failed to exec \"%.256s\"",
                      s->req->argv.n ? s->req->argv.v[0] : "");
    if (*text)
        err_hint(s->e, "%s", text);
    s->res->failed_to_start = true;
    finish_exit(s, code);
}

static void on_started(struct session *s)
{
    if (s->started) {
        violation(s, "STARTED twice");
        return;
    }
    s->started = true;
    forget_sent(s);
    set_deadline(s);
    if (s->req->on_started)
        s->req->on_started(s->req->started_ctx);
    if (s->req->attach) /* its terminal may have had another size */
        put_resize(s);
    if (s->req->detach)
        leave(s);
}

static void on_control(struct session *s, const struct proto_frame *f)
{
    uint64_t acked;
    diag_trace("session: received %s, %zu bytes", frame_name(f->type), f->len);
    switch (f->type) {
    case PROTO_STARTED:
        on_started(s);
        break;
    case PROTO_FAIL:
        on_fail_frame(s, f);
        break;
    case PROTO_EXIT:
        if (s->started)
            on_exit_frame(s, f);
        else
            violation(s, "EXIT before STARTED");
        break;
    case PROTO_STDIN_ACK:
        acked = proto_find_num(f, F_BYTES, 0);
        if (s->req->attach) /* possibly for what the previous client sent */
            s->unacked -= MIN(acked, s->unacked);
        else if (acked > s->unacked)
            violation(s, "more input acknowledged than was sent");
        else
            s->unacked -= acked;
        break;
    default: /* of a later minor version */
        break;
    }
}

static bool is_data(uint16_t type)
{
    return type == PROTO_STDOUT || type == PROTO_STDERR;
}

/* Its length may be anything. */
static struct proto_header header_at(const uint8_t *p)
{
    struct proto_header h;
    (void)proto_header_read(p, &h);
    return h;
}

/* The payload at the front of rx, and that of frames of the same stream right behind it. */
static int gather(const struct session *s, struct iovec *iov)
{
    uint8_t *p = buf_head(&s->rx), *end = p + buf_len(&s->rx);
    size_t left = s->data_left;
    int n = 0;
    for (;;) {
        size_t take = MIN(left, (size_t)(end - p));
        if (take)
            iov[n++] = (struct iovec){.iov_base = p, .iov_len = take};
        p += take;
        if (take < left || n == IOV_MAX_RUN || end - p < PROTO_HDR_LEN)
            return n;
        struct proto_header next = header_at(p);
        if (next.type != s->data_type || next.len > PROTO_DATA_MAX)
            return n;
        p += PROTO_HDR_LEN;
        left = next.len;
    }
}

/* Drops n bytes of payload, and the headers between them, as gather saw them. */
static void drop_written(struct session *s, size_t n)
{
    for (;;) {
        size_t take = MIN(n, s->data_left);
        buf_consume(&s->rx, take);
        s->data_left -= take;
        n -= take;
        if (n == 0)
            return;
        assert(s->data_left == 0 && buf_len(&s->rx) >= PROTO_HDR_LEN);
        s->data_left = header_at(buf_head(&s->rx)).len;
        buf_consume(&s->rx, PROTO_HDR_LEN);
    }
}

static void output_failed(struct session *s, const struct stdio *to, int err)
{
    if (err == EPIPE || err == ECONNRESET) {
        finish_exit(s, EXIT_SIGNAL_BASE + SIGPIPE);
        return;
    }
    finish(s, err_sys(s->e, err, "cannot write to %s", to == &s->err ? "stderr" : "stdout"));
}

/* Writes what is available of the data frame(s) at the front; false if that has to wait. */
static bool write_data(struct session *s)
{
    assert(s->started);
    struct iovec iov[IOV_MAX_RUN];
    struct stdio *to = s->data_type == PROTO_STDERR ? &s->err : &s->out;
    int n = gather(s, iov);
    if (n == 0)
        return false; /* more has to come first */
    ssize_t w = stdio_writev(to, iov, n);
    if (w >= 0) {
        drop_written(s, (size_t)w);
        return true;
    }
    if (w == -EAGAIN) {
        s->blocked = to;
        s->blocked_since_ns = now_ns();
    } else {
        output_failed(s, to, (int)-w);
    }
    return false;
}

/* Handles what is in rx, as far as possible. */
static void drain(struct session *s)
{
    while (!s->done) {
        if (s->data_left) {
            if (!write_data(s))
                return;
            continue;
        }
        if (buf_len(&s->rx) < PROTO_HDR_LEN)
            return;
        struct proto_header h = header_at(buf_head(&s->rx));
        if (h.len > PROTO_DATA_MAX) {
            violation(s, "a frame is too long");
        } else if (is_data(h.type) && !s->started) {
            violation(s, "output before STARTED");
        } else if (is_data(h.type)) {
            s->data_type = h.type;
            s->data_left = h.len;
            buf_consume(&s->rx, PROTO_HDR_LEN);
        } else {
            struct proto_frame f;
            if (proto_peek(&s->rx, &f) != 1)
                return;
            on_control(s, &f);
            if (s->again) {
                s->again = false;
                buf_reset(&s->rx);
                return;
            }
            if (!s->done) /* leave() reuses the buffer */
                proto_consume(&s->rx, &f);
        }
    }
}

static void on_socket(struct session *s)
{
    assert(!s->blocked);
    uint8_t *to = buf_reserve(&s->rx, RX_READ);
    if (!to) {
        finish(s, err_sys(s->e, ENOMEM, "cannot read from the sandbox"));
        return;
    }
    ssize_t n = recv(s->sock, to, RX_READ, MSG_DONTWAIT);
    if (n > 0) {
        buf_commit(&s->rx, (size_t)n);
        drain(s);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        lost(s);
    }
}

static void on_output_ready(struct session *s)
{
    if (s->deadline_ns) /* time spent by our reader does not count for the command */
        s->deadline_ns += now_ns() - s->blocked_since_ns;
    s->blocked = NULL;
    drain(s);
}

/* --- signals --- */

/* All except those about this process: its faults, its children, its pipes. */
static void add_all(sigset_t *set)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE,  SIGILL,  SIGTRAP,
                              SIGABRT, SIGSYS, SIGCHLD, SIGPIPE, SIGXFSZ};
    (void)sigfillset(set);
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        (void)sigdelset(set, own[i]);
}

static int watch_signals(struct session *s)
{
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(forwarded); i++) {
        struct sigaction sa; /* ignored from the start, as under nohup: it stays so */
        if (sigaction(forwarded[i], NULL, &sa) == 0 && sa.sa_handler != SIG_IGN)
            (void)sigaddset(&set, forwarded[i]);
    }
    if (s->req->all_signals)
        add_all(&set);
    if (s->req->tty)
        (void)sigaddset(&set, SIGWINCH);
    if (s->n_keys) { /* raw mode will be set, and must be undone and redone around a stop */
        (void)sigaddset(&set, SIGTSTP);
        (void)sigaddset(&set, SIGCONT);
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, &s->old_sigpipe);
    (void)sigprocmask(SIG_BLOCK, &set, &s->old_mask);
    s->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->sigfd < 0 ? err_sys(s->e, errno, "cannot watch signals") : 0;
}

static void unwatch_signals(struct session *s)
{
    close_fd(&s->sigfd);
    (void)sigaction(SIGPIPE, &s->old_sigpipe, NULL);
    (void)sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

/* Signals about our own terminal are not for the command. */
static bool is_own(const struct session *s, uint32_t signal)
{
    return signal == SIGWINCH ? s->req->tty : s->n_keys && (signal == SIGTSTP || signal == SIGCONT);
}

static void on_signal(struct session *s)
{
    struct signalfd_siginfo si;
    while (read(s->sigfd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
        if (!is_own(s, si.ssi_signo)) {
            put_signal(s, si.ssi_signo);
            continue;
        }
        if (si.ssi_signo == SIGTSTP)
            terminal_suspend();
        else if (si.ssi_signo == SIGCONT)
            terminal_resumed();
        put_resize(s);
    }
}

/* --- the loop --- */

static void check_deadline(struct session *s)
{
    if (s->deadline_ns && !s->blocked && now_ns() >= s->deadline_ns)
        finish_timeout(s);
}

static int poll_timeout(const struct session *s, bool recheck_stdin)
{
    int ms = recheck_stdin ? BACKGROUND_RECHECK_MS : -1;
    if (s->deadline_ns && !s->blocked) {
        uint64_t now = now_ns();
        uint64_t left = s->deadline_ns > now ? (s->deadline_ns - now) / 1000000 + 1 : 0;
        if (ms < 0 || left < (uint64_t)ms)
            ms = left > INT_MAX ? INT_MAX : (int)left;
    }
    return ms;
}

static void turn(struct session *s)
{
    enum { SOCK, IN, SIG, OUT, OWNER, N };
    int owner = s->req->owner ? s->req->owner : -1;
    struct pollfd p[N] = {{.fd = -1},
                          {.fd = -1},
                          {.fd = s->sigfd, .events = POLLIN},
                          {.fd = -1},
                          {.fd = owner, .events = POLLIN}};
    bool wants_in = wants_stdin(s);
    bool in_background = wants_in && stdin_in_background(s);

    p[SOCK].events = (short)((s->blocked ? 0 : POLLIN) | (tx_waiting(s) ? POLLOUT : 0));
    if (p[SOCK].events) /* else a hang-up that cannot be handled yet would keep waking us */
        p[SOCK].fd = s->sock;
    if (wants_in && !in_background)
        p[IN] = (struct pollfd){.fd = s->in.fd, .events = POLLIN};
    if (s->blocked)
        p[OUT] = (struct pollfd){.fd = s->blocked->fd, .events = POLLOUT};

    if (poll(p, N, poll_timeout(s, in_background)) < 0) {
        if (errno != EINTR)
            finish(s, err_sys(s->e, errno, "cannot wait for the sandbox"));
        return;
    }
    if (p[SIG].revents)
        on_signal(s);
    if (p[OUT].revents)
        on_output_ready(s);
    if (!s->done && !s->blocked && (p[SOCK].revents & (POLLIN | POLLHUP | POLLERR)))
        on_socket(s);
    else if (!s->done && p[OWNER].revents &&
             !p[OUT].revents) /* nothing to read, or no room for it */
        lost(s);
    if (!s->done && p[IN].revents)
        on_stdin(s);
    if (!s->done)
        check_deadline(s);
    if (!s->done)
        flush_tx(s);
}

static void open_stdio(struct session *s)
{
    const struct session_request *req = s->req;
    /* A connection with descriptor 0, 1 or 2 shows that this one was closed when we started. */
    stdio_open(&s->in, s->sock == 0 || req->no_stdin || req->detach ? -1 : 0, false);
    stdio_open(&s->out, s->sock == 1 ? -1 : 1, true);
    stdio_open(&s->err, s->sock == 2 ? -1 : 2, true);
    s->stdin_open = s->in.kind != STDIO_CLOSED && (!s->in.is_null || req->tty);
    if (!req->interactive || !s->in.is_tty || s->in.kind == STDIO_CLOSED)
        return;
    s->n_keys = MIN(req->n_detach_keys, (size_t)KEYS_MAX);
    memcpy(s->keys, req->detach_keys, s->n_keys);
    if (s->n_keys == 0)
        s->keys[s->n_keys++] = 0x1d; /* ctrl-] */
}

/* Available input is sent along with EXEC, often up to its end: one message instead of three. */
static void send_first(struct session *s)
{
    for (int i = 0; i < 2 && wants_stdin(s) && !s->n_keys && !s->done; i++) {
        struct pollfd p = {.fd = s->in.fd, .events = POLLIN};
        if (stdin_in_background(s) || poll(&p, 1, 0) != 1)
            break;
        on_stdin(s);
    }
    flush_tx(s);
}

int session_run(int sock, const struct session_request *req, struct session_result *res,
                struct err *e)
{
    struct session s = {.sock = sock, .req = req, .res = res, .e = e, .sigfd = -1};
    *res = (struct session_result){.exit_code = 1};
    err_clear(e);
    buf_init(&s.rx, RX_MAX);
    buf_init(&s.tx, TX_MAX);
    open_stdio(&s);
    int r = watch_signals(&s);
    if (r == 0)
        r = exec_frame_put(&s.tx, req, s.stdin_open, e);
    if (r == 0) {
        if (s.n_keys && terminal_raw(STDIN_FILENO) < 0)
            s.n_keys = 0;
        set_deadline(&s);
        send_first(&s);
        while (!s.done)
            turn(&s);
        r = s.ret;
        terminal_restore();
    }
    unwatch_signals(&s);
    if (!res->detached)
        (void)shutdown(sock, SHUT_RDWR);
    stdio_close(&s.in);
    stdio_close(&s.out);
    stdio_close(&s.err);
    buf_free(&s.rx);
    buf_free(&s.tx);
    return r;
}
