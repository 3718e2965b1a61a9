#include "client/request.h"

#include "client/frame_name.h"
#include "store/store.h"
#include "util/diag.h"
#include "util/sock.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { READ_SIZE = 4096 };

void request_begin(struct request *q, uint16_t type)
{
    diag_trace("asking the monitor: %s", frame_name(type));
    *q = (struct request){0};
    buf_init(&q->out, 2 * PROTO_HDR_LEN + PROTO_MSG_MAX);
    buf_init(&q->in, PROTO_HDR_LEN + PROTO_DATA_MAX + READ_SIZE);
    int r = proto_put_hello(&q->out);
    proto_begin(&q->w, &q->out, type);
    if (r < 0)
        q->w.err = r;
}

void request_free(struct request *q)
{
    buf_free(&q->out);
    buf_free(&q->in);
}

static int send_question(struct request *q, int fd, int with_fd)
{
    while (buf_len(&q->out)) {
        const uint8_t *p = buf_head(&q->out);
        size_t n = buf_len(&q->out);
        ssize_t sent;
        if (with_fd >= 0)
            sent = sock_send_with_fd(fd, p, n, with_fd);
        else
            sent = (sent = send(fd, p, n, MSG_NOSIGNAL)) < 0 ? -errno : sent;
        if (sent <= 0)
            return sent < 0 ? (int)sent : -EPIPE;
        with_fd = -1;
        buf_consume(&q->out, (size_t)sent);
    }
    return 0;
}

int request_end(struct request *q, int dirfd, int with_fd)
{
    int r = proto_end(&q->w);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = sandbox_connect(dirfd);
    if (fd < 0)
        return fd;
    int ms = q->hasty ? REQUEST_HASTY_MS : REQUEST_TIMEOUT_MS;
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000L};
    if (!q->patient)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    r = send_question(q, fd, with_fd);
    while (r == 0 && (r = proto_peek(&q->in, &q->answer)) == 0) {
        uint8_t *to = buf_reserve(&q->in, READ_SIZE);
        if (!to)
            return -EPROTO;
        ssize_t k = recv(fd, to, READ_SIZE, 0);
        if (k == 0)
            return -ECONNRESET;
        if (k < 0 && errno != EINTR)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        if (k > 0)
            buf_commit(&q->in, (size_t)k);
    }
    if (r > 0)
        diag_trace("the monitor answered %s, %zu bytes", frame_name(q->answer.type), q->answer.len);
    return r < 0 ? r : 0;
}

/* A request whose reply is `expect`, without further content. */
static int ask(int dirfd, uint16_t type, uint16_t expect, bool hasty)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, type);
    q.hasty = hasty;
    int r = request_end(&q, dirfd, -1);
    return r < 0 || q.answer.type == expect ? r : -EPROTO;
}

int request_stop(int dirfd, uint64_t grace_ms)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_STOP);
    proto_u64(&q.w, F_GRACE_MS, grace_ms);
    int r = request_end(&q, dirfd, -1);
    return r < 0 || q.answer.type == PROTO_OK ? r : -EPROTO;
}

int request_ping(int dirfd)
{
    return ask(dirfd, PROTO_PING, PROTO_PONG, false);
}

void request_news(int dirfd)
{
    (void)ask(dirfd, PROTO_PING, PROTO_PONG, true);
}

int request_touch(int dirfd)
{
    return ask(dirfd, PROTO_TOUCH, PROTO_OK, false);
}

int request_sessions(int dirfd, unsigned *ret)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_INFO);
    int r = request_end(&q, dirfd, -1);
    if (r < 0 || q.answer.type != PROTO_OK)
        return r < 0 ? r : -EPROTO;
    *ret = (unsigned)proto_find_num(&q.answer, F_SESSIONS, 0);
    return 0;
}

int request_wait(int dirfd, uint32_t id, int *code)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_WAIT);
    q.patient = true;
    if (id)
        proto_u32(&q.w, F_SESSION, id);
    int r = request_end(&q, dirfd, -1);
    if (r < 0 || q.answer.type != PROTO_OK)
        return r < 0 ? r : -ESRCH;
    uint64_t n = proto_find_num(&q.answer, F_CODE, UINT64_MAX);
    *code = n <= 255 ? (int)n : -1;
    return 0;
}

int request_info(int dirfd, bool hasty, char *to, size_t size)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_INFO);
    q.hasty = hasty;
    int r = request_end(&q, dirfd, -1);
    if (r < 0 || q.answer.type != PROTO_OK)
        return r < 0 ? r : -EPROTO;
    proto_find_text(&q.answer, F_TEXT, to, size);
    return 0;
}
