/* The relay between clients (real sockets) and the agent (the guest's end of a fake vsock). */
#include "fake_vsock.h"
#include "monitor/relay.h"
#include "sanitizer.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KIB ((size_t)1024)

struct relay_fix {
    struct fix *x;
    char dir[32];
    struct sockaddr_un addr;
    int listen_fd, logs_fd;
    struct loop loop;
    struct exec_log log;
    struct relay relay;
    unsigned changes, sessions, stops;
    unsigned requests; /* that the relay passed to its owner */
    int got_fd;        /* what came with the last one; -1 = none */
    bool keep_fd;
    uint64_t life_ms; /* of the last TOUCH */
};

static int on_touched(void *ctx, uint64_t life_ms, struct err *e)
{
    struct relay_fix *t = ctx;
    t->life_ms = life_ms;
    return 0;
}

static void on_sessions(void *ctx, unsigned n)
{
    struct relay_fix *t = ctx;
    t->changes++;
    t->sessions = n;
}

static void on_stop(void *ctx, uint64_t grace_ms)
{
    struct relay_fix *t = ctx;
    t->stops++;
}

static bool on_ping(void *ctx, uint64_t cookie)
{
    return true;
}

static char *on_info(void *ctx)
{
    return strdup("{}");
}

static bool on_request(void *ctx, const struct proto_frame *f, int *fd, struct buf *out)
{
    struct relay_fix *t = ctx;
    if (f->type != PROTO_PORT_ADD)
        return false;
    t->requests++;
    t->got_fd = *fd;
    if (t->keep_fd)
        *fd = -1;
    return proto_put(out, PROTO_OK, NULL, 0) == 0;
}

static const struct relay_events events = {on_touched, on_sessions, on_stop,
                                           on_ping,    on_info,     on_request};

enum { MEMORY_MIB = 64 };

static int relay_setup(void **state)
{
    struct relay_fix *t = calloc(1, sizeof(*t));
    void *x;
    (void)setup(&x);
    t->x = x;
    (void)snprintf(t->dir, sizeof(t->dir), "/tmp/relay-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    t->logs_fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    t->addr.sun_family = AF_UNIX;
    (void)snprintf(t->addr.sun_path, sizeof(t->addr.sun_path), "%s/agent.sock", t->dir);
    t->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(t->listen_fd, (struct sockaddr *)&t->addr, sizeof(t->addr)), 0);
    assert_int_equal(listen(t->listen_fd, 256), 0);
    assert_int_equal(loop_init(&t->loop), 0);
    assert_int_equal(exec_log_open(&t->log, t->logs_fd, "exec.log"), 0);
    relay_init(&t->relay, &t->loop, t->x->dev, &t->log, t->listen_fd, MEMORY_MIB, &events, t);
    relay_open(&t->relay);
    give_rx(t->x, QSIZE / 2);
    *state = t;
    return 0;
}

static void turn(struct relay_fix *t)
{
    for (int i = 0; i < 20; i++)
        assert_int_equal(loop_turn(&t->loop, 0), 0);
    (void)fake_run(&t->x->f, 1000);
}

static int relay_teardown(void **state)
{
    struct relay_fix *t = *state;
    void *x = t->x;
    relay_end(&t->relay);
    (void)teardown(&x); /* ends all streams, and with them their clients */
    assert_int_equal(loop_turn(&t->loop, 0), 0);
    exec_log_close(&t->log);
    loop_fini(&t->loop);
    (void)close(t->listen_fd);
    (void)unlinkat(t->logs_fd, "agent.sock", 0);
    (void)unlinkat(t->logs_fd, "exec.log", 0);
    (void)close(t->logs_fd);
    (void)rmdir(t->dir);
    free(t);
    return 0;
}

/* --- the client's side ----------------------------------------------------------------------- */

static int dial(struct relay_fix *t)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&t->addr, sizeof(t->addr)), 0);
    return fd;
}

static void say(int fd, uint16_t type, const void *p, size_t n)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    assert_int_equal(proto_put(&b, type, p, n), 0);
    assert_int_equal(send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL), buf_len(&b));
}

static void hello(int fd, uint32_t version)
{
    AUTO_BUF struct buf b = {.limit = 256};
    struct proto_writer w;
    proto_begin(&w, &b, PROTO_HELLO);
    proto_u32(&w, F_VERSION, version);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL), buf_len(&b));
}

/* The next frame's type; its first number of tag `tag` in *num. -1: end of file, -2: nothing. */
static int hear(int fd, uint16_t tag, uint64_t *num)
{
    uint8_t raw[4096];
    struct proto_hdr h;
    ssize_t k = recv(fd, &h, sizeof(h), MSG_DONTWAIT);
    if (k <= 0)
        return k == 0 || errno == ECONNRESET ? -1 : -2;
    assert_int_equal(k, sizeof(h));
    assert_true(le32toh(h.len) <= sizeof(raw));
    if (h.len)
        assert_int_equal(recv(fd, raw, le32toh(h.len), MSG_DONTWAIT), le32toh(h.len));
    struct proto_frame f = {.type = le16toh(h.type), .data = raw, .len = le32toh(h.len)};
    if (num)
        *num = proto_find_num(&f, tag, UINT64_MAX);
    return f.type;
}

static void expect_refusal(int fd)
{
    uint64_t kind = 0;
    assert_int_equal(hear(fd, F_KIND, &kind), PROTO_FAIL);
    assert_int_equal(kind, PROTO_FAIL_STATE);
    assert_int_equal(hear(fd, 0, NULL), -1);
}

#define VERSION (PROTO_VERSION_MAJOR << 16 | PROTO_VERSION_MINOR)

/* A client whose session has reached the agent's side; *port is the relay's. */
static int begin_session(struct relay_fix *t, uint32_t *port)
{
    int fd = dial(t);
    hello(fd, VERSION);
    say(fd, PROTO_EXEC, NULL, 0);
    turn(t);
    struct virtio_vsock_hdr h = expect(t->x, OP_REQUEST);
    assert_int_equal(h.dst_port, PROTO_PORT_SESSION);
    *port = h.src_port;
    return fd;
}

static void agent_accepts(struct relay_fix *t, uint32_t port)
{
    send_op(t->x, OP_RESPONSE, PROTO_PORT_SESSION, port);
    turn(t);
    (void)expect(t->x, OP_RW); /* HELLO */
    (void)expect(t->x, OP_RW); /* EXEC */
}

static void agent_says(struct relay_fix *t, uint32_t port, uint16_t type, size_t n)
{
    uint8_t frame[PROTO_HDR_LEN + 4000] = {0};
    struct proto_hdr h = {.len = htole32((uint32_t)n), .type = htole16(type)};
    memcpy(frame, &h, sizeof(h));
    send_data(t->x, PROTO_PORT_SESSION, port, frame, (uint32_t)(PROTO_HDR_LEN + n));
}

static void agent_ends(struct relay_fix *t, uint32_t port)
{
    send_shutdown(t->x, PROTO_PORT_SESSION, port, VSOCK_SHUT_RECV | VSOCK_SHUT_SEND);
}

/* Recycles the receive buffers, and discards what the relay sent. */
static void agent_reads(struct relay_fix *t)
{
    struct virtio_vsock_hdr h;
    while (take(t->x, &h, NULL))
        give_rx(t->x, 1);
}

/* Sends output until the client's socket and the relay's buffer are full; returns the frames. */
static unsigned flood(struct relay_fix *t, uint32_t port, size_t bytes)
{
    unsigned n = 0;
    for (size_t sent = 0; sent < bytes; sent += 4000, n++) {
        agent_says(t, port, PROTO_STDOUT, 4000);
        agent_reads(t);
    }
    return n;
}

/* --- tests ----------------------------------------------------------------------------------- */

static void test_version_is_checked(void **state)
{
    struct relay_fix *t = *state;
    uint64_t kind = 0;
    AUTO_CLOSE int fd = dial(t);
    hello(fd, (PROTO_VERSION_MAJOR + 1) << 16);
    turn(t);
    assert_int_equal(hear(fd, F_KIND, &kind), PROTO_FAIL);
    assert_int_equal(kind, PROTO_FAIL_VERSION);
    assert_int_equal(hear(fd, 0, NULL), -1);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_container_that_cannot_be(void **state)
{
    struct relay_fix *t = *state;
    AUTO_BUF struct buf b = {.limit = 1024};
    struct proto_writer w;
    uint64_t kind = 0;
    AUTO_CLOSE int fd = dial(t);
    proto_begin(&w, &b, PROTO_IN);
    proto_u32(&w, F_CONTAINER, PROTO_CONTAINER_MAX + 1);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL), buf_len(&b));
    turn(t);
    assert_int_equal(hear(fd, F_KIND, &kind), PROTO_FAIL);
    assert_int_equal(kind, PROTO_FAIL_OTHER);
    assert_int_equal(hear(fd, 0, NULL), -1);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_requests_are_answered(void **state)
{
    struct relay_fix *t = *state;
    static const uint16_t ask[] = {PROTO_TOUCH, PROTO_INFO, PROTO_STOP};
    for (size_t i = 0; i < ARRAY_LEN(ask); i++) {
        AUTO_CLOSE int fd = dial(t);
        hello(fd, VERSION);
        say(fd, ask[i], NULL, 0);
        turn(t);
        assert_int_equal(hear(fd, 0, NULL), PROTO_OK);
        assert_int_equal(hear(fd, 0, NULL), -1);
    }
    assert_int_equal(t->life_ms, 0);
    AUTO_CLOSE int last = dial(t);
    hello(last, VERSION);
    static const uint8_t life[] = {F_TIMEOUT_MS, 0, 8, 0, 0, 0, 0xd2, 4, 0, 0, 0, 0, 0, 0};
    say(last, PROTO_TOUCH, life, sizeof(life));
    turn(t);
    assert_int_equal(hear(last, 0, NULL), PROTO_OK);
    assert_int_equal(t->life_ms, 1234);
    assert_int_equal(t->stops, 1);
    AUTO_CLOSE int fd = dial(t);
    hello(fd, VERSION);
    say(fd, PROTO_PING, NULL, 0);
    turn(t);
    assert_int_equal(hear(fd, 0, NULL), -2);
    relay_pong(&t->relay, t->relay.last_cookie + 1); /* nothing waits for it */
    relay_pong(&t->relay, t->relay.last_cookie);
    assert_int_equal(hear(fd, 0, NULL), PROTO_PONG);
    assert_int_equal(t->relay.n_clients, 0);
}

/* The sandbox ends with the client that holds its leash, but not with others that wait. */
static void test_leash(void **state)
{
    struct relay_fix *t = *state;
    for (uint32_t leash = 0; leash < 2; leash++) {
        AUTO_BUF struct buf b = {.limit = 1024};
        struct proto_writer w;
        int fd = dial(t);
        proto_begin(&w, &b, PROTO_WAIT);
        proto_u32(&w, F_LEASH, leash);
        assert_int_equal(proto_end(&w), 0);
        hello(fd, VERSION);
        assert_int_equal(send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL), buf_len(&b));
        turn(t);
        assert_int_equal(hear(fd, 0, NULL), -2);
        assert_int_equal(t->stops, 0);
        relay_pong(&t->relay, 0); /* a guest that wants to get rid of them */
        assert_int_equal(hear(fd, 0, NULL), -2);
        (void)close(fd);
        turn(t);
        assert_int_equal(t->stops, leash);
        assert_int_equal(t->relay.n_clients, 0);
    }
}

static void test_frame_that_is_too_long(void **state)
{
    struct relay_fix *t = *state;
    AUTO_CLOSE int fd = dial(t);
    struct proto_hdr h = {.len = htole32(PROTO_DATA_MAX + 1), .type = htole16(PROTO_HELLO)};
    assert_int_equal(send(fd, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
    turn(t);
    assert_int_equal(hear(fd, 0, NULL), -1);
}

/* A command that writes too much is ended, with the frame that was too much; nothing is lost before it,
 * wherever frames are split. */
static void test_output_has_a_limit(void **state)
{
    struct relay_fix *t = *state;
    uint64_t kind = 0;
    uint32_t port;
    t->relay.output_max = 8000;
    AUTO_CLOSE int fd = begin_session(t, &port);
    agent_accepts(t, port);
    agent_says(t, port, PROTO_STARTED, 0);
    agent_says(t, port, PROTO_STDOUT, 4000);
    agent_says(t, port, PROTO_STDERR, 4000); /* as much as it may */
    agent_reads(t);
    turn(t);
    assert_int_equal(t->sessions, 1);
    uint8_t both[2 * (PROTO_HDR_LEN + 10)] = {0};
    for (size_t i = 0; i < 2; i++) {
        struct proto_hdr h = {.len = htole32(10), .type = htole16(PROTO_STDOUT)};
        memcpy(both + i * (PROTO_HDR_LEN + 10), &h, sizeof(h));
    }
    send_data(t->x, PROTO_PORT_SESSION, port, both, 5); /* half a header */
    send_data(t->x, PROTO_PORT_SESSION, port, both + 5, sizeof(both) - 5);
    turn(t);
    (void)expect(t->x, OP_RST); /* upon which the agent kills it */
    assert_int_equal(hear(fd, 0, NULL), PROTO_STARTED);
    assert_int_equal(hear(fd, 0, NULL), PROTO_STDOUT);
    assert_int_equal(hear(fd, 0, NULL), PROTO_STDERR);
    assert_int_equal(hear(fd, 0, NULL), PROTO_STDOUT); /* the second one is not passed on */
    assert_int_equal(hear(fd, F_KIND, &kind), PROTO_FAIL);
    assert_int_equal(kind, PROTO_FAIL_OUTPUT);
    assert_int_equal(hear(fd, 0, NULL), -1);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_client_that_goes_kills_its_command(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    int fd = begin_session(t, &port);
    agent_accepts(t, port);
    assert_int_equal(t->sessions, 1);
    (void)close(fd);
    turn(t);
    (void)expect(t->x, OP_RST);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_agent_that_sends_no_frames(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int fd = begin_session(t, &port);
    agent_accepts(t, port);
    struct proto_hdr h = {.len = UINT32_MAX, .type = htole16(PROTO_STDOUT)};
    send_data(t->x, PROTO_PORT_SESSION, port, &h, sizeof(h));
    turn(t);
    assert_int_equal(hear(fd, 0, NULL), -1);
    assert_int_equal(t->sessions, 0);
}

/* Output that a slow client has not read yet is part of the session: a sandbox that stops after its
 * last command must not lose it. */
static void test_session_lasts_until_its_output_is_taken(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int fd = begin_session(t, &port);
    agent_accepts(t, port);
    unsigned frames = flood(t, port, 400 * KIB);
    agent_says(t, port, PROTO_EXIT, 0);
    agent_ends(t, port);
    turn(t);
    assert_int_equal(t->sessions, 1);
    size_t got = 0;
    for (;;) {
        uint8_t raw[4096];
        ssize_t k = recv(fd, raw, sizeof(raw), MSG_DONTWAIT);
        if (k == 0)
            break;
        if (k > 0) {
            got += (size_t)k;
            continue;
        }
        assert_int_equal(t->sessions, 1);
        turn(t);
    }
    assert_int_equal(got, frames * (PROTO_HDR_LEN + 4000UL) + PROTO_HDR_LEN);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_client_that_never_reads_and_goes(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    int fd = begin_session(t, &port);
    agent_accepts(t, port);
    (void)flood(t, port, 400 * KIB);
    agent_says(t, port, PROTO_EXIT, 0);
    agent_ends(t, port);
    turn(t);
    (void)close(fd);
    turn(t);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

/* DETACH discards what is held, which uncovers the end of the stream, which frees the client: it
 * must not be used after that. */
static void test_detach_when_the_command_has_ended(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int fd = begin_session(t, &port);
    agent_accepts(t, port);
    (void)flood(t, port, 640 * KIB); /* socket and relay are full, the stream holds the rest */
    agent_says(t, port, PROTO_EXIT, 0);
    agent_ends(t, port);
    turn(t);
    assert_int_equal(t->sessions, 1);
    say(fd, PROTO_DETACH, NULL, 0);
    turn(t);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_detached_command_lives_on(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int fd = begin_session(t, &port);
    agent_accepts(t, port);
    say(fd, PROTO_DETACH, NULL, 0);
    turn(t);
    assert_int_equal(t->sessions, 1);
    (void)flood(t, port, 1024 * KIB); /* drained without a reader */
    agent_says(t, port, PROTO_EXIT, 0);
    agent_ends(t, port);
    turn(t);
    assert_int_equal(t->sessions, 0);
    assert_int_equal(t->relay.n_clients, 0);
}

static void test_silent_clients_are_dropped(void **state)
{
    struct relay_fix *t = *state;
    t->relay.hello_ns = 20 * 1000000ULL;
    uint32_t port;
    AUTO_CLOSE int quiet = dial(t);
    AUTO_CLOSE int half = dial(t);
    AUTO_CLOSE int busy = begin_session(t, &port);
    hello(half, VERSION);
    turn(t);
    assert_int_equal(t->relay.n_clients, 3);
    for (int i = 0; i < 100 && t->relay.n_clients > 1; i++)
        assert_int_equal(loop_turn(&t->loop, 10), 0);
    assert_int_equal(t->relay.n_clients, 1);
    assert_int_equal(hear(quiet, 0, NULL), -1);
    assert_int_equal(hear(half, 0, NULL), -1);
    assert_int_equal(hear(busy, 0, NULL), -2);
}

/* A late request is refused, in a way that says that nothing was done. */
static void test_the_end_refuses_cleanly(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int silent = dial(t);
    AUTO_CLOSE int unconnected = begin_session(t, &port);
    AUTO_CLOSE int waiting = dial(t); /* not even accepted */
    hello(waiting, VERSION);
    say(waiting, PROTO_EXEC, NULL, 0);
    relay_end(&t->relay);
    expect_refusal(silent);
    expect_refusal(unconnected);
    expect_refusal(waiting);
    int late = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(late, (struct sockaddr *)&t->addr, sizeof(t->addr)), -1);
    assert_int_equal(errno, ECONNREFUSED);
    (void)close(late);
    assert_int_equal(t->sessions, 0);
}

static void test_draining_refuses_sessions(void **state)
{
    struct relay_fix *t = *state;
    relay_refuse(&t->relay);
    AUTO_CLOSE int fd = dial(t);
    hello(fd, VERSION);
    say(fd, PROTO_EXEC, NULL, 0);
    turn(t);
    expect_refusal(fd);
}

/* As many as the guest's memory bears; one that ends makes room for another. */
static void test_sessions_are_limited_by_memory(void **state)
{
    struct relay_fix *t = *state;
    int fds[MEMORY_MIB / 2];
    uint32_t port;
    uint64_t kind = 0;
    char said[512] = "";
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = begin_session(t, &port);
        give_rx(t->x, 1);
    }
    AUTO_CLOSE int more = dial(t);
    hello(more, VERSION);
    say(more, PROTO_EXEC, NULL, 0);
    turn(t);
    ssize_t n = recv(more, said, sizeof(said) - 1, MSG_PEEK);
    assert_true(n > 0 && memmem(said, (size_t)n, "32 commands are running in this sandbox", 39));
    assert_non_null(memmem(said, (size_t)n, "with 64M of memory", 18));
    assert_int_equal(hear(more, F_KIND, &kind), PROTO_FAIL);
    assert_int_equal(kind, PROTO_FAIL_LIMIT);
    assert_int_equal(hear(more, 0, NULL), -1);
    assert_int_equal(t->sessions, ARRAY_LEN(fds));
    (void)close(fds[0]);
    turn(t);
    agent_reads(t);
    fds[0] = begin_session(t, &port);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    assert_int_equal(relay_sessions_max(1), RELAY_SESSIONS_MIN);
    assert_int_equal(relay_sessions_max(UINT64_MAX), RELAY_SESSIONS_MAX);
}

static void test_agent_that_does_not_listen(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    AUTO_CLOSE int fd = begin_session(t, &port);
    char said[512] = "";
    send_op(t->x, OP_RST, PROTO_PORT_SESSION, port);
    turn(t);
    ssize_t n = recv(fd, said, sizeof(said) - 1, MSG_PEEK);
    assert_true(n > 0 && memmem(said, (size_t)n, "accepts no more commands", 24));
    assert_null(memmem(said, (size_t)n, "shutting down", 13)); /* it is not */
    expect_refusal(fd);
    assert_int_equal(t->sessions, 0);
}

/* Out of memory: a client that cannot be heard is told so by the end of its connection, instead of
 * being tried again and again. */
static void test_out_of_memory(void **state)
{
    struct relay_fix *t = *state;
    struct rlimit old, none = {.rlim_cur = 1}; /* the host takes 0 for no limit */
    void **held = NULL, *p;
    SKIP_UNDER_SANITIZER();
    AUTO_CLOSE int fd = dial(t);
    turn(t); /* it is accepted */
    assert_int_equal(t->relay.n_clients, 1);
    assert_int_equal(getrlimit(RLIMIT_DATA, &old), 0);
    none.rlim_max = old.rlim_max;
    hello(fd, VERSION);
    assert_int_equal(setrlimit(RLIMIT_DATA, &none), 0);
    for (size_t n = 1 << 20; n >= 64; n /= 2)
        while ((p = malloc(n))) {
            *(void **)p = held;
            held = p;
        }
    int r = loop_turn(&t->loop, 0);
    assert_int_equal(setrlimit(RLIMIT_DATA, &old), 0);
    for (; held; held = p) {
        p = *held;
        free(held);
    }
    assert_int_equal(r, 0);
    assert_int_equal(hear(fd, 0, NULL), -1);
    assert_int_equal(t->relay.n_clients, 0);
}

/* Out of descriptors: the relay pauses instead of spinning, and resumes when there is one. */
static void test_out_of_descriptors(void **state)
{
    struct relay_fix *t = *state;
    AUTO_CLOSE int first = dial(t);
    turn(t);
    AUTO_CLOSE int second = dial(t);
    struct rlimit was, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = (rlim_t)second + 1; /* all lower numbers are in use */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    turn(t);
    assert_int_equal(t->relay.n_clients, 1);
    assert_int_equal(t->relay.listener.events, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    (void)close(first);
    first = -1;
    turn(t);
    assert_int_equal(t->relay.n_clients, 1); /* the second */
    assert_int_equal(t->relay.listener.events, EPOLLIN);
}

/* A session whose agent does not answer takes a bounded amount of input, and does not spin. */
static void test_input_before_the_agent_answers(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    static const uint8_t chunk[PROTO_DATA_MAX];
    AUTO_CLOSE int fd = begin_session(t, &port);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    size_t sent = 0;
    for (int idle = 0; idle < 3;) {
        ssize_t k = send(fd, chunk, sizeof(chunk), MSG_NOSIGNAL);
        sent += k > 0 ? (size_t)k : 0;
        idle = k > 0 ? 0 : idle + 1;
        turn(t);
        assert_true(sent < 2 << 20);
    }
}

/* All of the guest's buffers are in use when the agent answers: HELLO waits for one. */
static void test_greeting_waits_for_room(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port, last;
    int fd[QSIZE / 2];
    for (size_t i = 0; i < ARRAY_LEN(fd); i++)
        fd[i] = begin_session(t, i == 0 ? &port : &last);
    send_op(t->x, OP_RESPONSE, PROTO_PORT_SESSION, port);
    turn(t);
    expect_none(t->x);
    assert_int_equal(t->relay.n_clients, ARRAY_LEN(fd));
    give_rx(t->x, 4);
    turn(t);
    struct virtio_vsock_hdr hello = expect(t->x, OP_RW), exec = expect(t->x, OP_RW);
    assert_int_equal(hello.src_port, port);
    assert_int_equal(hello.len, PROTO_HDR_LEN + 10);
    assert_int_equal(exec.len, PROTO_HDR_LEN);
    agent_says(t, port, PROTO_EXIT, 0);
    turn(t);
    assert_int_equal(hear(fd[0], 0, NULL), PROTO_EXIT);
    for (size_t i = 0; i < ARRAY_LEN(fd); i++)
        (void)close(fd[i]);
}

/* The write end of a pipe is open somewhere as long as its reader sees no end of file. */
static bool is_open(int reader)
{
    char c;
    ssize_t k = read(reader, &c, 1);
    return k < 0 && errno == EAGAIN;
}

static void send_with(int fd, uint16_t type, int passed)
{
    AUTO_BUF struct buf b = {.limit = 256};
    assert_int_equal(proto_put(&b, type, NULL, 0), 0);
    assert_int_equal(sock_send_with_fd(fd, buf_head(&b), buf_len(&b), passed), buf_len(&b));
    (void)close(passed);
}

/* A descriptor goes to the request that it came with, and is closed if that does not take it. */
static void test_descriptors(void **state)
{
    struct relay_fix *t = *state;
    uint32_t port;
    int p[6][2];
    for (size_t i = 0; i < ARRAY_LEN(p); i++)
        assert_int_equal(pipe2(p[i], O_CLOEXEC | O_NONBLOCK), 0);
    for (int keep = 0; keep < 2; keep++) {
        AUTO_CLOSE int fd = dial(t);
        t->keep_fd = keep;
        t->got_fd = -1;
        hello(fd, VERSION);
        send_with(fd, PROTO_PORT_ADD, p[keep][1]);
        turn(t);
        assert_int_equal(hear(fd, 0, NULL), PROTO_OK);
        assert_true(t->got_fd >= 0);
        assert_int_equal(is_open(p[keep][0]), keep);
        assert_true(!keep || fcntl(t->got_fd, F_GETFD) & FD_CLOEXEC);
    }
    close_fd(&t->got_fd);
    AUTO_CLOSE int other = dial(t); /* an unknown request */
    hello(other, VERSION);
    send_with(other, PROTO_PORT_RM, p[2][1]);
    turn(t);
    assert_int_equal(hear(other, 0, NULL), PROTO_FAIL);
    assert_false(is_open(p[2][0]));
    AUTO_CLOSE int silent = dial(t); /* two before the request: the first counts */
    int extra = dup(p[3][1]);
    assert_true(extra >= 0);
    send_with(silent, PROTO_HELLO, p[3][1]);
    send_with(silent, PROTO_HELLO, extra);
    turn(t);
    assert_int_equal(t->relay.n_clients, 0); /* the HELLO was invalid */
    assert_false(is_open(p[3][0]));
    AUTO_CLOSE int session = begin_session(t, &port); /* a session takes none */
    agent_accepts(t, port);
    send_with(session, PROTO_STDIN, p[4][1]);
    turn(t);
    assert_false(is_open(p[4][0]));
    (void)expect(t->x, OP_RW);       /* its input */
    AUTO_CLOSE int begins = dial(t); /* nor does the request that begins one */
    hello(begins, VERSION);
    send_with(begins, PROTO_EXEC, p[5][1]);
    turn(t);
    (void)expect(t->x, OP_REQUEST);
    assert_false(is_open(p[5][0]));
    assert_int_equal(t->requests, 2);
    for (size_t i = 0; i < ARRAY_LEN(p); i++)
        (void)close(p[i][0]);
}

/* Alignment leaves room for two descriptors where one is expected: neither may leak. */
static void test_descriptors_in_one_message(void **state)
{
    struct relay_fix *t = *state;
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    char byte = 0; /* the beginning of a frame */
    int p[2], send[2];
    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    send[0] = p[1];
    send[1] = dup(p[1]);
    AUTO_CLOSE int fd = dial(t);
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof(control.space)};
    control.align = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(send))};
    memcpy(CMSG_DATA(&control.align), send, sizeof(send));
    assert_int_equal(sendmsg(fd, &m, 0), 1);
    (void)close(send[0]);
    (void)close(send[1]);
    turn(t);
    close_fd(&fd);
    turn(t);
    assert_int_equal(t->relay.n_clients, 0);
    assert_false(is_open(p[0]));
    (void)close(p[0]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, relay_setup, relay_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_version_is_checked),
        TEST(test_container_that_cannot_be),
        TEST(test_requests_are_answered),
        TEST(test_frame_that_is_too_long),
        TEST(test_leash),
        TEST(test_output_has_a_limit),
        TEST(test_client_that_goes_kills_its_command),
        TEST(test_agent_that_sends_no_frames),
        TEST(test_session_lasts_until_its_output_is_taken),
        TEST(test_client_that_never_reads_and_goes),
        TEST(test_detach_when_the_command_has_ended),
        TEST(test_detached_command_lives_on),
        TEST(test_silent_clients_are_dropped),
        TEST(test_the_end_refuses_cleanly),
        TEST(test_draining_refuses_sessions),
        TEST(test_sessions_are_limited_by_memory),
        TEST(test_agent_that_does_not_listen),
        TEST(test_out_of_descriptors),
        TEST(test_out_of_memory),
        TEST(test_input_before_the_agent_answers),
        TEST(test_greeting_waits_for_room),
        TEST(test_descriptors),
        TEST(test_descriptors_in_one_message),
    };
    return cmocka_run_group_tests_name("relay", tests, NULL, NULL);
}
