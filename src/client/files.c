#include "client/files.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum {
    TX_SEND = 128 * 1024, /* gathered before it is sent */
    TX_MAX = 2 * TX_SEND + PROTO_HDR_LEN + PROTO_DATA_MAX,
    RX_READ = 256 * 1024,
    RX_MAX = 4 * RX_READ, /* received while we send; more has to wait */
};

static int ended(const struct files *f, struct err *e)
{
    return err_set(e, ECONNRESET, "sandbox '%s' ended while files were copied", f->name);
}

static int violation(const struct files *f, const char *what, struct err *e)
{
    return err_set(e, EPROTO, "sandbox '%s' broke the protocol: %s", f->name, what);
}

/* --- the connection --- */

/* 1: bytes have arrived. 0: none now. -ECONNRESET. */
static int take_in(struct files *f)
{
    uint8_t *to = buf_reserve(&f->rx, RX_READ);
    if (!to)
        return 0; /* enough for now */
    ssize_t n = recv(f->sock, to, RX_READ, MSG_DONTWAIT);
    if (n > 0) {
        buf_commit(&f->rx, (size_t)n);
        return 1;
    }
    return n == 0 || (errno != EAGAIN && errno != EINTR) ? -ECONNRESET : 0;
}

/* Sends what is waiting. What cannot be sent because the peer no longer reads is dropped: what it
 * has sent tells why. */
static void push_out(struct files *f)
{
    while (buf_len(&f->tx)) {
        ssize_t n = send(f->sock, buf_head(&f->tx), buf_len(&f->tx), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            buf_consume(&f->tx, (size_t)n);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR) {
            buf_reset(&f->tx);
            return;
        }
        bool room = buf_len(&f->rx) + RX_READ <= RX_MAX;
        struct pollfd p = {.fd = f->sock, .events = (short)(POLLOUT | (room ? POLLIN : 0))};
        if (poll(&p, 1, -1) > 0 && p.revents & POLLIN && room && take_in(f) < 0)
            buf_reset(&f->tx);
    }
}

static int queued(struct files *f, int r, struct err *e)
{
    if (r < 0)
        return err_sys(e, -r, "cannot send to sandbox '%s'", f->name);
    if (buf_len(&f->tx) >= TX_SEND)
        push_out(f);
    return 0;
}

static int open_stream(struct files *f, int sock, const char *name, const char *user,
                       const char *cwd, uint32_t only, struct err *e)
{
    struct proto_writer w;
    *f = (struct files){.sock = sock, .name = name};
    buf_init(&f->rx, RX_MAX + PROTO_HDR_LEN + PROTO_DATA_MAX);
    buf_init(&f->tx, TX_MAX);
    int r = proto_put_hello(&f->tx);
    proto_begin(&w, &f->tx, PROTO_FILES);
    if (user)
        proto_str(&w, F_USER, user);
    if (cwd)
        proto_str(&w, F_CWD, cwd);
    if (only)
        proto_u32(&w, F_FILE_OP, only);
    int k = proto_end(&w);
    r = queued(f, r < 0 ? r : k, e);
    if (r < 0)
        files_close(f);
    return r;
}

int files_open(struct files *f, int sock, const char *name, const char *user, const char *cwd,
               struct err *e)
{
    return open_stream(f, sock, name, user, cwd, 0, e);
}

int files_open_layer(struct files *f, int sock, const char *name, struct err *e)
{
    return open_stream(f, sock, name, "0", "/", FILE_OP_LAYER, e);
}

void files_close(struct files *f)
{
    if (!f->name)
        return;
    close_fd(&f->sock);
    buf_free(&f->rx);
    buf_free(&f->tx);
    f->name = NULL;
}

/* --- sending --- */

int files_send(struct files *f, const struct file_req *q, struct err *e)
{
    return queued(f, file_req_put(&f->tx, q), e);
}

int files_send_part(struct files *f, uint16_t type, const struct file_attr *a, struct err *e)
{
    struct proto_writer w;
    proto_begin(&w, &f->tx, type);
    if (a)
        file_attr_put(&w, a);
    return queued(f, proto_end(&w), e);
}

int files_send_data(struct files *f, const void *p, size_t n, struct err *e)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at < n;) {
        size_t k = MIN(n - at, (size_t)PROTO_DATA_MAX);
        r = queued(f, proto_put(&f->tx, PROTO_FILE_DATA, (const uint8_t *)p + at, k), e);
        at += k;
    }
    return r;
}

bool files_answered(const struct files *f)
{
    return buf_len(&f->rx) > (f->taken ? PROTO_HDR_LEN + f->cur.len : 0);
}

/* --- answers --- */

/* The guest's own message, made safe to show. */
static int guest_error(const struct files *f, const struct proto_frame *frame, struct err *e)
{
    char text[ERR_MSG_MAX / 2];
    uint64_t code = proto_find_num(frame, F_ERRNO, EIO);
    proto_find_text(frame, F_TEXT, text, sizeof(text));
    utf8_defuse(text);
    if (code == 0 || code > 4095)
        code = EIO;
    if (frame->type == PROTO_FAIL && proto_find_num(frame, F_KIND, 0) == PROTO_FAIL_STATE)
        code = ESHUTDOWN;
    return err_set(e, (int)code, "%s:%s%s", f->name, frame->type == PROTO_FAIL ? " " : "",
                   *text ? text : "refused");
}

/* Checked before all of it has arrived, since there may never be room for it. */
static bool is_too_long(const struct files *f)
{
    struct proto_header h;
    if (buf_len(&f->rx) < PROTO_HDR_LEN)
        return false;
    (void)proto_header_read(buf_head(&f->rx), &h);
    return h.len > PROTO_DATA_MAX;
}

int files_next(struct files *f, struct proto_frame *frame, struct err *e)
{
    int got;
    if (f->taken)
        proto_consume(&f->rx, &f->cur);
    f->taken = false;
    push_out(f);
    while ((got = proto_peek(&f->rx, &f->cur)) == 0) {
        struct pollfd p = {.fd = f->sock, .events = POLLIN};
        if (is_too_long(f))
            break;
        int r = take_in(f);
        if (r < 0)
            return ended(f, e);
        if (r == 0)
            (void)poll(&p, 1, -1);
    }
    if (got <= 0 || f->cur.len > PROTO_DATA_MAX)
        return violation(f, "a frame is too long", e);
    f->taken = true;
    *frame = f->cur;
    if (frame->type == PROTO_FILE_ERR || frame->type == PROTO_FAIL)
        return guest_error(f, frame, e);
    return 0;
}

int files_wait(struct files *f, struct file_attr *a, struct err *e)
{
    struct proto_frame frame = {0};
    int r = files_next(f, &frame, e);
    if (r < 0)
        return r;
    if (frame.type != PROTO_FILE_OK)
        return violation(f, "an answer to something else", e);
    if (a && file_attr_parse(a, &frame) < 0)
        return violation(f, "malformed attributes", e);
    return 0;
}

int files_ask(struct files *f, const struct file_req *q, struct file_attr *a, struct err *e)
{
    int r = files_send(f, q, e);
    return r < 0 ? r : files_wait(f, a, e);
}

int file_req_init(struct file_req *q, uint32_t op, const char *path, uint32_t flags)
{
    memset(q, 0, __builtin_offsetof(struct file_req, path));
    q->op = op;
    q->flags = flags;
    q->to[0] = '\0';
    int n = snprintf(q->path, sizeof(q->path), "%s", path);
    return n < 0 || (size_t)n >= sizeof(q->path) ? -ENAMETOOLONG : 0;
}

int files_stat(struct files *f, const char *path, uint32_t flags, struct file_attr *a,
               struct err *e)
{
    static struct file_req q;
    int r = file_req_init(&q, FILE_OP_STAT, path, flags);
    if (r < 0)
        return err_sys(e, -r, "%.256s", path);
    r = files_ask(f, &q, a, e);
    if (r == 0 && !(a->has & FILE_HAS_MODE))
        return violation(f, "a file without a type", e);
    return r;
}
