/* The guest's TCP connections to the name server: messages with their length in front. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/dns_impl.h"
#include "net/packet.h"
#include "util/cleanup.h"

/* #syscalls:net socketpair sendto recvfrom close */

enum { IDLE_S = 30, QUESTION_MAX = 1024, OUT_MAX = 4 * DNS_MSG_MAX };

struct dns_client {
    struct dns *d;
    struct node all;
    struct loop_src src;
    struct loop_timer idle;
    struct buf in, out;
};

static void client_free(struct dns_client *c)
{
    struct dns *d = c->d;
    dns_forget(d, c);
    loop_close(d->loop, &c->src);
    loop_timer_off(d->loop, &c->idle);
    buf_free(&c->in);
    buf_free(&c->out);
    node_unlink(&c->all);
    assert(d->n_clients > 0);
    d->n_clients--;
    free(c);
}

static void on_idle(struct loop_timer *t)
{
    client_free(CONTAINER_OF(t, struct dns_client, idle));
}

/* False: the connection is gone. */
static bool flush(struct dns_client *c)
{
    while (buf_len(&c->out) > 0) {
        ssize_t k =
            send(c->src.fd, buf_head(&c->out), buf_len(&c->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (k <= 0)
            break;
        buf_consume(&c->out, (size_t)k);
    }
    return loop_mod(c->d->loop, &c->src, buf_len(&c->out) > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN) == 0;
}

void dns_client_reply(struct dns_client *c, const uint8_t *p, size_t n)
{
    uint8_t len[2];
    put16(len, (uint16_t)n);
    /* A client that asks but does not read gets no more answers; its timer ends it. */
    if (buf_append(&c->out, len, 2) == 0 && buf_append(&c->out, p, n) == 0)
        (void)flush(c);
}

/* True if there was a complete message. */
static bool take_message(struct dns_client *c, uint8_t *out, size_t *ret_n)
{
    size_t have = buf_len(&c->in);
    if (have < 2)
        return false;
    size_t n = be16(buf_head(&c->in));
    if (have < 2 + n)
        return false;
    memcpy(out, buf_head(&c->in) + 2, n);
    buf_consume(&c->in, 2 + n);
    *ret_n = n;
    return true;
}

static void on_client(struct loop_src *src, uint32_t events)
{
    struct dns_client *c = CONTAINER_OF(src, struct dns_client, src);
    uint8_t msg[QUESTION_MAX];
    size_t n;
    if ((events & EPOLLOUT) && !flush(c)) {
        client_free(c);
        return;
    }
    uint8_t *to = buf_reserve(&c->in, 256);
    ssize_t k = to ? recv(src->fd, to, 256, MSG_DONTWAIT) : 0;
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (k <= 0) {
        client_free(c);
        return;
    }
    buf_commit(&c->in, (size_t)k);
    if (buf_len(&c->in) >= 2 && be16(buf_head(&c->in)) > QUESTION_MAX) {
        client_free(c); /* no question is that long */
        return;
    }
    loop_timer_set(c->d->loop, &c->idle, IDLE_S * 1000000000ULL);
    struct dns_asker a = {.client = c};
    while (take_message(c, msg, &n)) {
        dns_ask(c->d, &a, msg, n);
        if (buf_len(&c->in) >= 2 && be16(buf_head(&c->in)) > QUESTION_MAX)
            return; /* noticed with the next bytes, or by the timer */
    }
}

int dns_connect(struct dns *d)
{
    int pair[2];
    if (d->n_clients == DNS_CLIENTS_MAX)
        return -EMFILE;
    AUTO_FREE struct dns_client *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    c->d = d;
    c->src = (struct loop_src){.fd = pair[1], .fn = on_client};
    c->idle.fn = on_idle;
    buf_init(&c->in, 2 * (size_t)QUESTION_MAX);
    buf_init(&c->out, OUT_MAX);
    int r = loop_add(d->loop, &c->src, EPOLLIN);
    if (r < 0) {
        (void)close(pair[0]);
        (void)close(pair[1]);
        return r;
    }
    loop_timer_set(d->loop, &c->idle, IDLE_S * 1000000000ULL);
    node_append(&d->clients, &c->all);
    d->n_clients++;
    (void)steal_ptr(&c); /* the list owns it */
    return pair[0];
}

void dns_clients_free(struct dns *d)
{
    while (node_linked(&d->clients))
        client_free(CONTAINER_OF(d->clients.next, struct dns_client, all));
}
