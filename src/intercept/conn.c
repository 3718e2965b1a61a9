#include "intercept/conn.h"

#include "intercept/exchange.h"
#include "util/cleanup.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:intercept read write recvfrom sendto shutdown close */

#define MS(n) ((uint64_t)(n)*1000000ULL)

enum {
    ROUNDS_MAX = 32, /* of one connection, before others get a turn */
};

/* --- life ------------------------------------------------------------------------------------ */

static void conn_free(struct conn *c)
{
    loop_timer_off(c->h->loop, &c->timer);
    loop_timer_off(c->h->loop, &c->again);
    side_close(&c->guest, c->h->loop);
    side_close(&c->server, c->h->loop);
    swap_end(&c->to_server);
    swap_end(&c->to_guest);
    h2_free(c->h2);
    node_unlink(&c->node);
    c->h->n--;
    free(c);
}

/* --- telling --------------------------------------------------------------------------------- */

void conn_report(struct conn *c, enum link_report_kind kind, const char *text)
{
    struct link_report r = {.kind = kind, .id = c->id};
    (void)snprintf(r.host, sizeof(r.host), "%s", c->host);
    (void)snprintf(r.text, sizeof(r.text), "%s", text);
    c->h->report(c->h, &r);
}

void conn_finish(struct conn *c)
{
    c->ending = true;
    side_close(&c->server, c->h->loop);
}

/* Buffers are kept while a body passes, but not by connections that wait for a request. */
static void rest(struct conn *c)
{
    if (c->tunnel || (c->h2 && h2_idle(c->h2)) ||
        (c->request == REQUEST_HEAD && c->response == RESPONSE_NONE && !c->h2)) {
        buf_shrink(&c->guest.in);
        buf_shrink(&c->guest.out);
        buf_shrink(&c->server.in);
        buf_shrink(&c->server.out);
    }
}

/* --- HTTP/2 ---------------------------------------------------------------------------------- */

static const struct subst *h2_secrets(void *arg)
{
    struct conn *c = arg;
    config_expire(c->h->config, now_ns());
    return &c->h->config->subst;
}

static void h2_report(void *arg, enum link_report_kind kind, const char *text)
{
    conn_report(arg, kind, text);
}

static int h2_want(void *arg, const char *secret, const char **why)
{
    struct conn *c = arg;
    return c->h->want(c->h, secret, why);
}

static bool begin_h2(struct conn *c)
{
    const struct h2_env env = {.host = c->host,
                               .port = c->id.peer.port,
                               .trouble = c->trouble,
                               .arg = c,
                               .secrets = h2_secrets,
                               .report = h2_report,
                               .want = h2_want};
    return h2_new(&c->h2, &env) == 0;
}

static bool take_h2(struct conn *c, enum h2_side from, struct side *s)
{
    size_t n = buf_len(&s->in);
    if (n == 0)
        return false;
    if (h2_take(c->h2, from, buf_head(&s->in), n) < 0)
        c->over = true;
    buf_consume(&s->in, n);
    return true;
}

/* Output waits in its session until there is room; so does input, since its sender gets no
 * window. */
static bool step_h2(struct conn *c)
{
    bool any = take_h2(c, H2_GUEST, &c->guest), none = false;
    if (c->server.ready && !c->over)
        any |= take_h2(c, H2_SERVER, &c->server);
    if (c->server.eof && c->server.ready && buf_len(&c->server.in) == 0 && !c->lost) {
        c->lost = any = true;
        h2_lost_server(c->h2);
    }
    any |= h2_give(c->h2, H2_GUEST, &c->guest.out, CONN_HIGH, &none);
    if (c->server.ready && !c->lost)
        any |= h2_give(c->h2, H2_SERVER, &c->server.out, CONN_HIGH, &c->server.secret);
    if (c->over || c->guest.eof || (!any && h2_over(c->h2))) {
        conn_finish(c);
        return true;
    }
    return any;
}

/* --- steps ----------------------------------------------------------------------------------- */

static bool step_tunnel(struct conn *c)
{
    bool any = false;
    size_t n = buf_len(&c->guest.in);
    if (n > 0 && side_room(&c->server))
        any = side_pass(&c->guest, &c->server, n);
    n = buf_len(&c->server.in);
    if (n > 0 && side_room(&c->guest))
        any |= side_pass(&c->server, &c->guest, n);
    return any;
}

static bool step_request(struct conn *c)
{
    if (buf_len(&c->guest.in) == 0 || !side_room(&c->server) || c->waiting)
        return false;
    if (c->request == REQUEST_HEAD)
        return conn_take_request(c);
    return c->request == REQUEST_BODY && conn_take_request_body(c);
}

static bool step_response(struct conn *c)
{
    if (buf_len(&c->server.in) == 0 || !side_room(&c->guest))
        return false;
    switch (c->response) {
    case RESPONSE_NONE:
        c->cut = true; /* a response without a request */
        return true;
    case RESPONSE_HEAD:
        return conn_take_response(c);
    case RESPONSE_BODY:
        return conn_take_response_body(c);
    default:
        return false;
    }
}

/* Both are complete: continues with the next request, or ends. */
static bool step_exchange(struct conn *c)
{
    if (c->request != REQUEST_SENT || c->response != RESPONSE_DONE)
        return false;
    if (c->close) {
        conn_finish(c);
        return true;
    }
    c->request = REQUEST_HEAD;
    c->response = RESPONSE_NONE;
    c->answered = false;
    return true;
}

/* Handles the end of one side, once everything received from it has been used. */
static bool step_ends(struct conn *c)
{
    if (c->server.eof && c->response == RESPONSE_HEAD && buf_len(&c->server.in) > 0 &&
        side_room(&c->guest) && !c->tunnel) {
        conn_bad_response(c, "ends in its head");
        return true;
    }
    if (c->server.eof && (buf_len(&c->server.in) == 0 || side_room(&c->guest))) {
        bool whole = c->response == RESPONSE_NONE || c->response == RESPONSE_DONE || c->tunnel ||
                     (c->response == RESPONSE_BODY && c->response_body.framing == HTTP_UNTIL_END &&
                      c->server.clean);
        c->cut |= !whole;
        if (c->response == RESPONSE_BODY &&
            c->to_guest.n > 0) /* what could have been the beginning of a text */
            (void)swap_run(&c->to_guest, "", 0, true, &c->guest.out);
        conn_finish(c);
        return true;
    }
    if (!c->guest.eof || c->waiting || (buf_len(&c->guest.in) > 0 && !side_room(&c->server)))
        return false;
    if (c->tunnel ? buf_len(&c->server.out) == 0 : c->request != REQUEST_SENT) {
        conn_finish(c);
        return true;
    }
    return false;
}

static bool step(struct conn *c)
{
    if (c->ending || c->cut)
        return false;
    if (c->h2)
        return step_h2(c);
    if (c->server.failed && !c->server.ready) {
        if (buf_len(&c->guest.in) == 0 && !c->guest.eof)
            return false; /* it is told when it sends a request */
        conn_refuse(c, 502, "server_not_trusted", c->trouble);
        return true;
    }
    if (!c->guest.ready || !c->server.ready)
        return false;
    if (c->tunnel)
        return step_tunnel(c) || step_ends(c);
    return step_request(c) || (!c->ending && step_response(c)) ||
           (!c->ending && step_exchange(c)) || (!c->ending && step_ends(c));
}

/* --- events ---------------------------------------------------------------------------------- */

/* The reply is complete: wait for the client to hang up, so that nothing it still sends causes a
 * reset that overtakes our reply. */
static bool linger(struct conn *c)
{
    if (!c->lingering && buf_len(&c->guest.out) == 0) {
        ERR_clear_error();
        if (c->guest.ssl)
            (void)SSL_shutdown(c->guest.ssl);
        (void)shutdown(c->guest.src.fd, SHUT_WR);
        c->lingering = true;
        loop_timer_set(c->h->loop, &c->timer, MS(CONN_LINGER_MS));
    }
    buf_wipe(&c->guest.in);
    return !c->guest.eof || !c->lingering;
}

/* A request to be signed may have to be read completely first, which is not done for streams. */
static unsigned to_offer(const struct conn *c)
{
    return subst_signs(&c->h->config->subst, c->host) ? c->speak.offered & TLS_HTTP1
                                                      : c->speak.offered;
}

/* The server is offered what the client speaks. */
static bool handshake_server(struct conn *c)
{
    if (!c->speak.heard || (!c->offered && !tls_offer(c->server.ssl, to_offer(c))))
        return false;
    c->offered = true;
    if (!side_handshake(&c->server))
        return false;
    if (c->server.failed)
        tls_client_error(c->server.ssl, c->host, c->trouble, sizeof(c->trouble));
    /* A guest without a server gets a reply in its protocol, HTTP/1.1 if possible. */
    if (!c->speak.chosen)
        c->speak.chosen = c->server.ready                ? tls_chosen(c->server.ssl)
                          : c->speak.offered & TLS_HTTP1 ? TLS_HTTP1
                                                         : TLS_HTTP2;
    return true;
}

static bool handshake_guest(struct conn *c)
{
    if (!side_handshake(&c->guest))
        return false;
    if (c->guest.failed && tls_was_rejected())
        conn_report(c, LINK_UNTRUSTED,
                    "the client does not accept msb's certificate: it may have pinned another, or "
                    "not know SSL_CERT_FILE");
    return true;
}

/* False: the connection is gone. */
static bool handshakes(struct conn *c, bool *any)
{
    *any |= handshake_guest(c);
    if (!c->guest.failed && handshake_server(c)) {
        *any = true;
        handshake_guest(c); /* it may have waited for that */
    }
    if (c->guest.failed)
        return false;
    bool both = c->guest.ready && (c->server.ready || c->server.failed);
    if (both && c->speak.chosen == TLS_HTTP2 && !c->h2 && !c->ending && !begin_h2(c))
        return false;
    if (c->guest.ready && c->server.ready && c->timer.at_ns && !c->lingering)
        loop_timer_off(c->h->loop, &c->timer);
    return true;
}

static void conn_run(struct conn *c)
{
    for (unsigned i = 0; i < ROUNDS_MAX; i++) {
        bool any = false;
        if (!handshakes(c, &any)) {
            conn_free(c);
            return;
        }
        any |= side_fill(&c->guest);
        any |= side_fill(&c->server);
        while (step(c))
            any = true;
        any |= side_flush(&c->server);
        any |= side_flush(&c->guest);
        if (c->guest.failed || c->cut || (c->ending && !linger(c))) {
            conn_free(c);
            return;
        }
        if (c->server.failed && c->server.ready)
            c->server.eof = true;
        if (!any) {
            rest(c);
            return;
        }
    }
    loop_timer_set(c->h->loop, &c->again, 0);
}

static void on_event(struct loop_src *src, uint32_t events)
{
    struct side *s = CONTAINER_OF(src, struct side, src);
    conn_run(s->c);
}

static void on_again(struct loop_timer *t)
{
    conn_run(CONTAINER_OF(t, struct conn, again));
}

static void on_timer(struct loop_timer *t)
{
    conn_free(CONTAINER_OF(t, struct conn, timer));
}

static int side_open(struct side *s, struct conn *c, int fd)
{
    s->c = c;
    s->src = (struct loop_src){.fd = fd, .fn = on_event};
    buf_init(&s->in, CONN_HIGH + CONN_PIECE + HTTP_HEAD_MAX);
    buf_init(&s->out, 2 * CONN_HIGH + SUBST_HEAD_MAX);
    int r = loop_add(c->h->loop, &s->src, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (r < 0)
        close_fd(&s->src.fd);
    return r;
}

int conn_new(struct conn_host *h, const struct link_flow *f, int guest_fd, int server_fd)
{
    struct conn *c = calloc(1, sizeof(*c));
    if (!c) {
        close_fd(&guest_fd);
        close_fd(&server_fd);
        return -ENOMEM;
    }
    c->h = h;
    c->id = f->id;
    memcpy(c->host, f->host, sizeof(c->host));
    c->speak.host = c->host;
    c->timer.fn = on_timer;
    c->again.fn = on_again;
    node_append(&h->all, &c->node);
    h->n++;
    int r = side_open(&c->guest, c, guest_fd);
    int k = side_open(&c->server, c, server_fd);
    c->plain = f->id.peer.port == LINK_PORT_PLAIN;
    c->guest.ready = c->server.ready = c->plain;
    if (r == 0 && k == 0 && !c->plain) {
        c->guest.ssl = tls_server(h->tls, &c->speak, guest_fd);
        c->server.ssl = tls_client(h->tls, c->host, server_fd);
    }
    if (r < 0 || k < 0 || (!c->plain && (!c->guest.ssl || !c->server.ssl))) {
        conn_free(c);
        return -ENOMEM;
    }
    loop_timer_set(h->loop, &c->timer, MS(CONN_HANDSHAKE_MS));
    conn_run(c);
    return 0;
}

void conn_resume(struct conn_host *h)
{
    for (struct node *n = h->all.next, *next; n != &h->all; n = next) {
        struct conn *c = CONTAINER_OF(n, struct conn, node);
        next = n->next;
        if (c->h2 && h2_waits(c->h2))
            h2_resume(c->h2);
        else if (!c->waiting)
            continue;
        c->waiting = false;
        conn_run(c); /* may end it, but no other */
    }
}
