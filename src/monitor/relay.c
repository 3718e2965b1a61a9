#include "monitor/relay.h"

#include "monitor/relay_client.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* #syscalls:monitor accept4 recvmsg close epoll_ctl shutdown */

enum {
    READ_CHUNK = 64 * 1024,
    WATCHES = 8, /* how often clients without a request are checked within RELAY_HELLO_MS */
};

/* --- requests ------------------------------------------------------------------------------- */

unsigned relay_sessions_max(uint64_t memory_mib)
{
    return (unsigned)MIN(MAX(memory_mib / 2, RELAY_SESSIONS_MIN), RELAY_SESSIONS_MAX);
}

static void refuse_one_more(struct relay_client *c)
{
    const struct relay *r = c->relay;
    char text[160];
    int n = snprintf(text, sizeof(text),
                     "%u commands are running in this sandbox, the most it can run", r->n_sessions);
    if (r->n_sessions < RELAY_SESSIONS_MAX)
        (void)snprintf(text + n, sizeof(text) - (size_t)n,
                       " with %" PRIu64 "M of memory: wait for one to end, or raise --memory",
                       r->memory_mib);
    else
        (void)snprintf(text + n, sizeof(text) - (size_t)n, ": wait for one to end");
    client_refuse(c, PROTO_FAIL_LIMIT, text);
}

static void begin_session(struct relay_client *c, const struct proto_frame *f)
{
    struct relay *r = c->relay;
    if (!r->open) {
        client_refuse(c, PROTO_FAIL_STATE, RELAY_GOING_DOWN);
        return;
    }
    if (r->n_sessions >= relay_sessions_max(r->memory_mib)) {
        refuse_one_more(c);
        return;
    }
    assert(!c->in_session && !c->stream);
    c->note.stdout_as = proto_find_num(f, F_TTY, 0) ? LOG_OUTPUT : LOG_STDOUT;
    c->stream = vsock_connect(r->vsock, PROTO_PORT_SESSION + c->container, &client_stream_ops, c);
    if (!c->stream) {
        client_refuse(c, PROTO_FAIL_LIMIT, "too many commands at once in this sandbox");
        return;
    }
    c->state = CLIENT_SESSION;
    r->n_execs += f->type == PROTO_EXEC;
    c->background = f->type == PROTO_EXEC && proto_find_num(f, F_BACKGROUND, 0);
    c->note.log = proto_find_num(f, F_CTL_PORT, 0) ? NULL : r->log;
    c->note.most = r->output_max;
    c->note.command = (struct background_command){.id = ++r->last_id,
                                                  .tty = c->note.stdout_as == LOG_OUTPUT,
                                                  .no_stdin = proto_find_num(f, F_NO_STDIN, 0) != 0,
                                                  .exit_code = BACKGROUND_UNKNOWN};
    command_take_words(&c->note.command, f);
    c->in_session = true;
    r->n_sessions++;
    r->ev->sessions_changed(r->ctx, r->n_sessions);
    client_pump(c);
}

static void answer_info(struct relay_client *c)
{
    AUTO_FREE char *json = c->relay->ev->info(c->relay->ctx);
    struct proto_writer w;
    proto_begin(&w, &c->out, PROTO_OK);
    proto_u32(&w, F_SESSIONS, c->relay->n_sessions);
    proto_str(&w, F_TEXT, json ? json : "{}");
    (void)proto_end(&w);
    client_finish(c);
}

/* A background session, or NULL. */
static struct relay_client *find_background(struct relay *r, uint64_t id)
{
    for (struct node *n = r->clients.next; n != &r->clients; n = n->next) {
        struct relay_client *c = CONTAINER_OF(n, struct relay_client, node);
        if (c->background && c->in_session && c->note.command.id == id)
            return c;
    }
    return NULL;
}

/* Does not reply yet: waits until that session ends, or (id 0) the stream itself. */
static void begin_wait(struct relay_client *c, const struct proto_frame *f)
{
    uint64_t id = proto_find_num(f, F_SESSION, 0);
    if (id && !find_background(c->relay, id)) {
        client_refuse(c, PROTO_FAIL_NOT_FOUND, "there is no such background command");
        return;
    }
    c->wait_id = (uint32_t)id;
    c->leash = proto_find_num(f, F_LEASH, 0) == 1;
    c->state = CLIENT_ANSWER;
    buf_reset(&c->in);
}

/* Attaches c's connection to a session without one. */
static void attach(struct relay_client *c, const struct proto_frame *f)
{
    struct relay *r = c->relay;
    struct relay_client *to = find_background(r, proto_find_num(f, F_SESSION, 0));
    if (!to || !to->stream || to->note.exited) {
        client_refuse(c, PROTO_FAIL_NOT_FOUND, "there is no such background command");
        return;
    }
    if (!to->detached) {
        client_refuse(c, PROTO_FAIL_OTHER, "another client is attached to it");
        return;
    }
    proto_consume(&c->in, f);
    int fd = c->src.fd;
    loop_del(r->loop, &c->src);
    to->src.fd = fd;
    if (proto_put(&to->out, PROTO_STARTED, NULL, 0) < 0 ||
        scanner_begin_again(&to->note.scan, &to->out) < 0 ||
        buf_append(&to->in, buf_head(&c->in), buf_len(&c->in)) < 0 ||
        loop_add(r->loop, &to->src, EPOLLIN) < 0) {
        close_fd(&fd);
        to->src.fd = -1;
        buf_reset(&to->out);
        buf_reset(&to->in);
    } else {
        to->detached = false;
        if (client_flush(to))
            client_pump(to);
    }
    client_free(c);
}

static void touch(struct relay_client *c, uint64_t life_ms)
{
    struct err e = {0};
    int r = c->relay->ev->touched(c->relay->ctx, life_ms, &e);
    if (r < 0) {
        client_refuse_as(c, PROTO_FAIL_OTHER, -r, e.msg);
        return;
    }
    (void)proto_put(&c->out, PROTO_OK, NULL, 0);
    client_finish(c);
}

static void handle_request(struct relay_client *c, const struct proto_frame *f)
{
    struct relay *r = c->relay;
    switch (f->type) {
    case PROTO_EXEC:
    case PROTO_FILES:
    case PROTO_CONTAINER:
        close_fd(&c->sent_fd); /* these take none */
        begin_session(c, f);   /* the frame stays in `in`, to be passed on */
        return;
    case PROTO_TOUCH:
        touch(c, proto_find_num(f, F_TIMEOUT_MS, 0));
        return;
    case PROTO_STOP: {
        uint64_t grace = proto_find_num(f, F_GRACE_MS, 0);
        (void)proto_put(&c->out, PROTO_OK, NULL, 0);
        client_finish(c);
        r->ev->stop(r->ctx, grace);
        return;
    }
    case PROTO_PING:
        c->cookie = ++r->last_cookie;
        c->state = CLIENT_ANSWER;
        proto_consume(&c->in, f);
        if (!r->ev->ping(r->ctx, c->cookie))
            client_refuse(c, PROTO_FAIL_STATE, "the agent cannot be reached");
        return;
    case PROTO_INFO:
        answer_info(c);
        return;
    case PROTO_WAIT:
        begin_wait(c, f);
        return;
    case PROTO_ATTACH:
        close_fd(&c->sent_fd);
        attach(c, f);
        return;
    default:
        if (r->ev->request && r->ev->request(r->ctx, f, &c->sent_fd, &c->out))
            client_finish(c);
        else
            client_refuse(c, PROTO_FAIL_OTHER, "unknown request");
    }
}

void relay_pong(struct relay *r, uint64_t cookie)
{
    if (cookie == 0) /* of clients that have sent no ping */
        return;
    for (struct node *n = r->clients.next; n != &r->clients; n = n->next) {
        struct relay_client *c = CONTAINER_OF(n, struct relay_client, node);
        if (c->state == CLIENT_ANSWER && c->cookie == cookie) {
            (void)proto_put(&c->out, PROTO_PONG, NULL, 0);
            client_finish(c);
            return;
        }
    }
}

/* False when the client was refused, and may be gone. */
static bool take_hello(struct relay_client *c, const struct proto_frame *f)
{
    if (f->type == PROTO_IN) {
        uint64_t number = proto_find_num(f, F_CONTAINER, 0);
        if (number > PROTO_CONTAINER_MAX) {
            client_refuse(c, PROTO_FAIL_OTHER, "there is no such container");
            return false;
        }
        c->container = (uint32_t)number;
        proto_consume(&c->in, f);
        return true;
    }
    if (!proto_is_hello(f)) {
        client_refuse(c, PROTO_FAIL_VERSION, "this sandbox was started by another version of msb");
        return false;
    }
    c->state = CLIENT_REQUEST;
    proto_consume(&c->in, f);
    return true;
}

static void on_input(struct relay_client *c)
{
    while (c->state == CLIENT_HELLO || c->state == CLIENT_REQUEST) {
        struct proto_frame f;
        int r = proto_peek(&c->in, &f);
        if (r == 0)
            return;
        if (r < 0) {
            client_free(c);
            return;
        }
        if (c->state == CLIENT_REQUEST) {
            handle_request(c, &f); /* may free c */
            return;
        }
        if (!take_hello(c, &f))
            return;
    }
    if (c->state == CLIENT_SESSION)
        client_pump(c);
    else
        buf_reset(&c->in); /* an answer is on its way: further input is ignored */
}

/* --- sockets -------------------------------------------------------------------------------- */

static bool undecided(const struct relay_client *c)
{
    return c->state == CLIENT_HELLO || c->state == CLIENT_REQUEST;
}

/* Like recv(), but returns -errno. Keeps one descriptor for the request that it belongs to, and
 * closes all others. */
static ssize_t client_receive(struct relay_client *c, uint8_t *to, size_t n)
{
    int fd = -1;
    ssize_t k = sock_recv_with_fd(c->src.fd, to, n, &fd);
    if (k > 0 && undecided(c) && c->sent_fd < 0)
        c->sent_fd = steal_fd(&fd);
    close_fd(&fd);
    return k;
}

static void on_client(struct loop_src *src, uint32_t events)
{
    struct relay_client *c = CONTAINER_OF(src, struct relay_client, src);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        uint8_t *to = buf_reserve(&c->in, READ_CHUNK);
        ssize_t k = to ? client_receive(c, to, READ_CHUNK) : -ENOMEM;
        /* It hung up; or there is no memory for its data, and there may never be. */
        if (k == 0 || (k < 0 && k != -EAGAIN)) {
            client_lost(c);
            return;
        }
        if (k > 0) {
            buf_commit(&c->in, (size_t)k);
            on_input(c);
            return; /* c may be gone; EPOLLOUT is level-triggered and comes again */
        }
    }
    if (events & EPOLLOUT)
        client_writable(c);
}

/* --- comings and goings --------------------------------------------------------------------- */

void relay_resume_listening(struct relay *r)
{
    if (r->listening && r->n_clients < RELAY_CLIENTS_MAX)
        (void)loop_mod(r->loop, &r->listener, EPOLLIN);
}

static void arm_watch(struct relay *r)
{
    if (r->watch.at_ns == 0)
        loop_timer_set(r->loop, &r->watch, r->hello_ns / WATCHES);
}

/* Drops clients that take too long to make their request, and tries to listen again. */
static void on_watch(struct loop_timer *t)
{
    struct relay *r = CONTAINER_OF(t, struct relay, watch);
    uint64_t now = now_ns();
    bool more = false;
    for (struct node *n = r->clients.next, *next; n != &r->clients; n = next) {
        struct relay_client *c = CONTAINER_OF(n, struct relay_client, node);
        next = n->next;
        if (!undecided(c))
            continue;
        if (now - c->since_ns >= r->hello_ns)
            client_free(c);
        else
            more = true;
    }
    relay_resume_listening(r);
    if (more)
        arm_watch(r);
}

/* Takes fd, even on failure. */
static struct relay_client *client_new(struct relay *r, int fd)
{
    struct relay_client *c = calloc(1, sizeof(*c));
    if (!c) {
        (void)close(fd);
        return NULL;
    }
    c->relay = r;
    c->sent_fd = -1;
    c->since_ns = now_ns();
    c->src = (struct loop_src){.fd = fd, .fn = on_client};
    /* One EXEC may be as large as the protocol allows; a running session is paused far below
     * that. */
    buf_init(&c->in, PROTO_HDR_LEN + PROTO_MSG_MAX + READ_CHUNK);
    buf_init(&c->out, CLIENT_OUT_MAX + PROTO_DATA_MAX);
    buf_init(&c->hello, 256);
    if (loop_add(r->loop, &c->src, EPOLLIN) < 0) {
        (void)close(fd);
        free(c);
        return NULL;
    }
    node_append(&r->clients, &c->node);
    r->n_clients++;
    return c;
}

static void on_listener(struct loop_src *src, uint32_t events)
{
    struct relay *r = CONTAINER_OF(src, struct relay, listener);
    int fd = accept4(src->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (fd >= 0)
        (void)client_new(r, fd);
    if (fd < 0 || r->n_clients >= RELAY_CLIENTS_MAX) /* further clients wait */
        (void)loop_mod(r->loop, &r->listener, 0);
    arm_watch(r);
}

void relay_init(struct relay *r, struct loop *l, struct virtio_dev *vsock, struct exec_log *log,
                int listen_fd, uint64_t memory_mib, const struct relay_events *ev, void *ctx)
{
    *r = (struct relay){
        .loop = l, .vsock = vsock, .log = log, .memory_mib = memory_mib, .ev = ev, .ctx = ctx};
    r->output_max = UINT64_MAX;
    node_init(&r->clients);
    r->listener = (struct loop_src){.fd = listen_fd, .fn = on_listener};
    r->watch.fn = on_watch;
    r->hello_ns = RELAY_HELLO_MS * 1000000ULL;
}

void relay_open(struct relay *r)
{
    assert(!r->listening);
    r->open = true;
    r->listening = loop_add(r->loop, &r->listener, EPOLLIN) == 0;
}

void relay_refuse(struct relay *r)
{
    r->open = false;
}

void relay_end(struct relay *r)
{
    int listen_fd = r->listener.fd;
    if (!r->listening)
        return;
    r->open = r->listening = false;
    loop_del(r->loop, &r->listener);
    loop_timer_off(r->loop, &r->watch);
    /* From here on, no client can connect; clients that connected before are refused. */
    (void)shutdown(listen_fd, SHUT_RDWR);
    int fd;
    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        (void)client_new(r, fd);
    for (struct node *n = r->clients.next, *next; n != &r->clients; n = next) {
        struct relay_client *c = CONTAINER_OF(n, struct relay_client, node);
        next = n->next;
        if (undecided(c) || (c->state == CLIENT_SESSION && !c->connected))
            client_refuse(c, PROTO_FAIL_STATE, RELAY_GOING_DOWN);
    }
}
