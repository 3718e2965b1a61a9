#include "session_peer.h"

#include "unit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

enum { LONG_MS = 20000 };

const struct client_setup quiet = {.fd = {NO_FD, NO_FD, NO_FD}};

void pause_ms(unsigned ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&ts, NULL);
}

void request_init(struct session_request *req, const char *arg0)
{
    *req = (struct session_request){0};
    assert_int_equal(strlist_add(&req->argv, arg0), 0);
}

void request_free(struct session_request *req)
{
    strlist_free(&req->argv);
    strlist_free(&req->env);
}

static void put_fd(int from, int to)
{
    if (from == CLOSED_FD) {
        (void)close(to);
        return;
    }
    int fd = from == NO_FD ? open("/dev/null", O_RDWR) : from;
    if (dup2(fd, to) < 0)
        _exit(99);
}

static void client(struct outcome *o, int sock, const struct session_request *req,
                   const struct client_setup *setup)
{
    int fd[3];
    for (int i = 0; i < 3; i++) /* clear of 0..2, so that one does not overwrite another */
        fd[i] = setup->fd[i] < 0 ? setup->fd[i] : fcntl(setup->fd[i], F_DUPFD, 10);
    for (int i = 0; i < 3; i++)
        put_fd(fd[i], i);
    /* The test's own ends came along with fork; no pipe would ever end. */
    if (sock > 3)
        (void)close_range(3, (unsigned)sock - 1, 0);
    (void)close_range((unsigned)sock + 1, ~0U, 0);
    if (setup->before)
        setup->before(o);
    o->ret = session_run(sock, req, &o->res, &o->e);
    o->returned = true;
    pause_ms(setup->linger_ms);
    o->gone = true;
}

void peer_start(struct peer *p, const struct session_request *req, const struct client_setup *setup)
{
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    p->sock = sv[0];
    buf_init(&p->in, 2 * PROTO_MSG_MAX);
    p->o = mmap(NULL, sizeof(*p->o), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p->o, MAP_FAILED);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        (void)close(sv[0]);
        client(p->o, sv[1], req, setup);
        _exit(0);
    }
    (void)close(sv[1]);
    for (int i = 0; i < 3; i++) {
        bool again = false;
        for (int k = 0; k < i; k++)
            again |= setup->fd[k] == setup->fd[i];
        if (setup->fd[i] >= 0 && !again)
            (void)close(setup->fd[i]);
    }
}

void peer_run(struct peer *p, const struct client_setup *setup, uint64_t timeout_ms)
{
    struct session_request req;
    request_init(&req, "true");
    req.timeout_ms = timeout_ms;
    peer_start(p, &req, setup);
    request_free(&req);
}

void peer_end(struct peer *p)
{
    uint64_t until = now_ns() + LONG_MS * 1000000ULL;
    int status = 0;
    pid_t r;
    while ((r = waitpid(p->pid, &status, WNOHANG)) == 0 && now_ns() < until)
        pause_ms(1);
    if (r == 0) {
        (void)kill(p->pid, SIGKILL);
        (void)waitpid(p->pid, &status, 0);
        fail_msg("session_run did not return");
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) /* a sanitizer's report, too */
        fail_msg("the client died: status %#x", (unsigned)status);
    if (p->sock >= 0)
        (void)close(p->sock);
    buf_free(&p->in);
}

bool peer_next(struct peer *p, struct proto_frame *f)
{
    static uint8_t held[PROTO_MSG_MAX];
    int r;
    while ((r = proto_peek(&p->in, f)) == 0) {
        struct pollfd pfd = {.fd = p->sock, .events = POLLIN};
        if (poll(&pfd, 1, LONG_MS) != 1)
            fail_msg("no frame came");
        uint8_t *to = buf_reserve(&p->in, 65536);
        assert_non_null(to);
        ssize_t n = recv(p->sock, to, 65536, 0);
        if (n <= 0)
            return false;
        buf_commit(&p->in, (size_t)n);
    }
    assert_int_equal(r, 1);
    if (f->len)
        memcpy(held, f->data, f->len);
    struct proto_frame seen = *f;
    f->data = held;
    proto_consume(&p->in, &seen);
    return true;
}

void peer_expect_exec(struct peer *p, struct proto_frame *exec)
{
    struct proto_frame f;
    assert_true(peer_next(p, &f));
    assert_int_equal(f.type, PROTO_HELLO);
    assert_int_equal(proto_find_num(&f, F_VERSION, 0), PROTO_VERSION_MAJOR << 16);
    assert_true(peer_next(p, &f));
    assert_int_equal(f.type, PROTO_EXEC);
    if (exec) {
        uint8_t *copy = malloc(f.len);
        assert_non_null(copy);
        memcpy(copy, f.data, f.len);
        *exec = (struct proto_frame){.type = f.type, .data = copy, .len = f.len};
    }
}

void peer_send_raw(struct peer *p, const void *data, size_t n)
{
    const uint8_t *at = data;
    while (n) {
        ssize_t w = send(p->sock, at, n, MSG_NOSIGNAL);
        if (w < 0)
            return; /* the client has gone: the test sees that by other means */
        at += w;
        n -= (size_t)w;
    }
}

void peer_send(struct peer *p, uint16_t type, const void *data, size_t n)
{
    struct proto_hdr h = {.len = htole32((uint32_t)n), .type = htole16(type)};
    peer_send_raw(p, &h, sizeof(h));
    peer_send_raw(p, data, n);
}

void peer_send_num(struct peer *p, uint16_t type, uint16_t tag, uint64_t v)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    proto_begin(&w, &b, type);
    if (v <= UINT32_MAX)
        proto_u32(&w, tag, (uint32_t)v);
    else
        proto_u64(&w, tag, v);
    assert_int_equal(proto_end(&w), 0);
    peer_send_raw(p, buf_head(&b), buf_len(&b));
    buf_free(&b);
}

void peer_ack(struct peer *p, uint64_t bytes)
{
    peer_send_num(p, PROTO_STDIN_ACK, F_BYTES, bytes);
}

void peer_fail(struct peer *p, uint32_t kind, const char *text)
{
    struct buf b = {.limit = 65536};
    struct proto_writer w;
    proto_begin(&w, &b, PROTO_FAIL);
    proto_u32(&w, F_KIND, kind);
    proto_str(&w, F_TEXT, text);
    assert_int_equal(proto_end(&w), 0);
    peer_send_raw(p, buf_head(&b), buf_len(&b));
    buf_free(&b);
}

void peer_begin(struct peer *p)
{
    peer_expect_exec(p, NULL);
    peer_send_num(p, PROTO_STARTED, F_PID, 7);
}

void peer_exit(struct peer *p, uint32_t code)
{
    peer_send_num(p, PROTO_EXIT, F_CODE, code);
}

void read_all(int fd, struct buf *to)
{
    for (;;) {
        uint8_t *at = buf_reserve(to, 65536);
        assert_non_null(at);
        ssize_t n = read(fd, at, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        buf_commit(to, (size_t)n);
    }
}
