#include "client/request.h"

#include "proto/proto.h"
#include "store/store.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void cleanup_buf(struct buf *b)
{
    buf_free(b);
}

int request_exchange(int dirfd, const struct buf *frames, int with_fd, struct buf *answer,
                     struct proto_frame *f)
{
    AUTO_CLOSE int fd = sandbox_connect(dirfd);
    if (fd < 0)
        return fd;
    struct timeval tv = {.tv_sec = REQUEST_TIMEOUT_MS / 1000};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
    int r;
    for (size_t done = 0; done < buf_len(frames);) {
        const uint8_t *p = buf_head(frames) + done;
        size_t n = buf_len(frames) - done;
        ssize_t sent;
        if (with_fd >= 0 && done == 0)
            sent = sock_send_with_fd(fd, p, n, with_fd);
        else
            sent = (sent = send(fd, p, n, MSG_NOSIGNAL)) < 0 ? -errno : sent;
        if (sent <= 0)
            return sent < 0 ? (int)sent : -EPIPE;
        done += (size_t)sent;
    }
    while ((r = proto_peek(answer, f)) == 0) {
        uint8_t *to = buf_reserve(answer, 4096);
        if (!to)
            return -EPROTO;
        ssize_t k = recv(fd, to, 4096, 0);
        if (k == 0)
            return -ECONNRESET;
        if (k < 0 && errno != EINTR)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        if (k > 0)
            buf_commit(answer, (size_t)k);
    }
    return r < 0 ? r : 0;
}

static int ask(int dirfd, uint16_t type, uint64_t grace_ms, struct buf *answer,
               struct proto_frame *f)
{
    CLEANUP(cleanup_buf) struct buf out;
    struct proto_writer w;
    buf_init(&out, 256);
    int r = proto_put_hello(&out);
    proto_begin(&w, &out, type);
    proto_u64(&w, F_GRACE_MS, grace_ms);
    if (r < 0 || (r = proto_end(&w)) < 0)
        return r;
    return request_exchange(dirfd, &out, -1, answer, f);
}

static int ask_simple(int dirfd, uint16_t type, uint64_t grace_ms, uint16_t expect)
{
    CLEANUP(cleanup_buf) struct buf answer;
    struct proto_frame f = {0};
    buf_init(&answer, REQUEST_ANSWER_MAX);
    int r = ask(dirfd, type, grace_ms, &answer, &f);
    if (r < 0)
        return r;
    return f.type == expect ? 0 : -EPROTO;
}

int request_stop(int dirfd, uint64_t grace_ms)
{
    return ask_simple(dirfd, PROTO_STOP, grace_ms, PROTO_OK);
}

int request_ping(int dirfd)
{
    return ask_simple(dirfd, PROTO_PING, 0, PROTO_PONG);
}

int request_touch(int dirfd)
{
    return ask_simple(dirfd, PROTO_TOUCH, 0, PROTO_OK);
}

int request_sessions(int dirfd, unsigned *ret)
{
    CLEANUP(cleanup_buf) struct buf answer;
    struct proto_frame f = {0};
    buf_init(&answer, REQUEST_ANSWER_MAX);
    int r = ask(dirfd, PROTO_INFO, 0, &answer, &f);
    if (r < 0)
        return r;
    if (f.type != PROTO_OK)
        return -EPROTO;
    *ret = (unsigned)proto_find_num(&f, F_SESSIONS, 0);
    return 0;
}
