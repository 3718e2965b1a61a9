#include "intercept/conn.h"

#include "intercept/http1.h"
#include "util/cleanup.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

/* #syscalls:intercept read write recvfrom sendto shutdown close */

#define MS(n) ((uint64_t)(n)*1000000ULL)

enum { ROUNDS_MAX = 32 }; /* of one connection, before others get their turn */

struct side {
    struct conn *c;
    SSL *ssl;
    struct loop_src src;
    struct buf in, out; /* decrypted; to be encrypted */
    bool ready;         /* the handshake is done */
    bool eof;           /* nothing more will come */
    bool clean;         /* ... and the other end said so */
    bool failed;
    bool secret; /* there is a value in `out` */
};

enum request_state { REQUEST_HEAD, REQUEST_BODY, REQUEST_SENT };
enum response_state { RESPONSE_NONE, RESPONSE_HEAD, RESPONSE_BODY, RESPONSE_DONE };

struct conn {
    struct conn_host *h;
    struct node node;
    struct net_flow_id id;
    char host[SUBST_HOST_MAX];
    struct side guest, server;
    struct loop_timer timer, again;

    enum request_state request;
    enum response_state response;
    struct http_body request_body, response_body;
    struct subst_search search;
    size_t request_seen, response_seen; /* of heads, for http_head_end() */
    bool is_head, websocket, answered;  /* of the current request */
    bool waiting;                       /* for the value of a secret in it */
    bool tunnel;                        /* bytes pass as they are */
    bool close;                         /* after the current response */
    bool ending;                        /* once what there is for the guest is sent */
    bool lingering;                     /* it is sent: what still comes is dropped */
    bool cut;                           /* without a proper end: the rest is missing */
    char trouble[SUBST_TEXT_MAX];       /* why the server's side failed */
};

static struct http_head head; /* one thread, and too large for its stack */

/* --- life ------------------------------------------------------------------------------------ */

static void wipe(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->cap);
}

static void side_close(struct side *s)
{
    SSL_free(s->ssl);
    s->ssl = NULL;
    if (s->src.fd >= 0)
        loop_close(s->c->h->loop, &s->src);
    wipe(&s->out);
    wipe(&s->in);
    buf_free(&s->in);
    buf_free(&s->out);
    s->eof = true;
}

static void conn_free(struct conn *c)
{
    loop_timer_off(c->h->loop, &c->timer);
    loop_timer_off(c->h->loop, &c->again);
    side_close(&c->guest);
    side_close(&c->server);
    node_unlink(&c->node);
    c->h->n--;
    free(c);
}

/* --- telling --------------------------------------------------------------------------------- */

static void report(struct conn *c, enum link_report_kind kind, const char *text)
{
    struct link_report r = {.kind = kind, .id = c->id};
    (void)snprintf(r.host, sizeof(r.host), "%s", c->host);
    (void)snprintf(r.text, sizeof(r.text), "%s", text);
    c->h->report(c->h, &r);
}

/* Ends it with what is on its way to the guest. */
static void finish(struct conn *c)
{
    c->ending = true;
    side_close(&c->server);
}

/* An answer of our own to the current request, and the end. */
static void answer(struct conn *c, int status, const char *error, const char *text)
{
    static const char *const reasons[] = {[400 - 400] = "Bad Request",
                                          [403 - 400] = "Forbidden",
                                          [421 - 400] = "Misdirected Request"};
    char safe[SUBST_TEXT_MAX], body[2 * SUBST_TEXT_MAX + 256];
    size_t n = 0;
    for (; n < sizeof(safe) - 1 && text[n]; n++)
        safe[n] = text[n] == '"' || text[n] == '\\' || text[n] < ' ' ? '?' : text[n];
    safe[n] = '\0';
    if (c->answered) { /* too late for that */
        finish(c);
        return;
    }
    (void)snprintf(body, sizeof(body),
                   "{\"error\":\"%s\",\"host\":\"%s\",\"message\":\"msb did not send this "
                   "request: %s.\"}\n",
                   error, c->host, safe);
    c->answered = true;
    (void)buf_printf(&c->guest.out,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\nConnection: close\r\nMsb-Blocked: %s\r\n\r\n%s",
                     status, status < 500 ? reasons[status - 400] : "Bad Gateway", strlen(body),
                     safe, c->is_head ? "" : body);
    finish(c);
}

static void refuse(struct conn *c, int status, const char *error, const char *text)
{
    report(c, LINK_REFUSED, text);
    answer(c, status, error, text);
}

static void violation(struct conn *c, const char *text)
{
    report(c, LINK_VIOLATION, text);
    answer(c, 403, "secret_blocked", text);
}

/* --- TLS ------------------------------------------------------------------------------------- */

/* True: it is over, for better or worse. */
static bool handshake(struct side *s)
{
    if (s->ready || s->failed || !s->ssl)
        return false;
    ERR_clear_error();
    int k = SSL_do_handshake(s->ssl);
    if (k == 1) {
        s->ready = true;
        return true;
    }
    int err = SSL_get_error(s->ssl, k);
    if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE)
        return false;
    s->failed = s->eof = true;
    return true;
}

static bool fill(struct side *s)
{
    bool any = false;
    if (!s->ready || s->eof)
        return false;
    while (buf_len(&s->in) < CONN_HIGH) {
        uint8_t *to = buf_reserve(&s->in, CONN_PIECE);
        if (!to)
            break;
        ERR_clear_error();
        int k = SSL_read(s->ssl, to, CONN_PIECE);
        if (k > 0) {
            buf_commit(&s->in, (size_t)k);
            any = true;
            continue;
        }
        int err = SSL_get_error(s->ssl, k);
        if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE)
            break;
        s->eof = any = true;
        s->clean = err == SSL_ERROR_ZERO_RETURN;
        break;
    }
    return any;
}

static bool flush(struct side *s)
{
    bool any = false;
    if (!s->ready || s->failed)
        return false;
    while (buf_len(&s->out) > 0) {
        ERR_clear_error();
        int k = SSL_write(s->ssl, buf_head(&s->out), (int)MIN(buf_len(&s->out), (size_t)CONN_HIGH));
        if (k <= 0) {
            int err = SSL_get_error(s->ssl, k);
            s->failed = err != SSL_ERROR_WANT_READ && err != SSL_ERROR_WANT_WRITE;
            return any || s->failed;
        }
        buf_consume(&s->out, (size_t)k);
        any = true;
    }
    if (any && s->secret)
        wipe(&s->out);
    s->secret = s->secret && !any;
    return any;
}

/* Buffers are kept while a body goes through, and not by connections that wait for a request. */
static void rest(struct conn *c)
{
    if (c->tunnel || (c->request == REQUEST_HEAD && c->response == RESPONSE_NONE)) {
        buf_shrink(&c->guest.in);
        buf_shrink(&c->guest.out);
        buf_shrink(&c->server.in);
        buf_shrink(&c->server.out);
    }
}

static bool room(const struct side *s)
{
    return buf_len(&s->out) < CONN_HIGH;
}

/* Room behind values, without leaving copies of them behind. */
static int reserve_secret(struct buf *b, size_t n)
{
    struct buf larger = {.limit = b->limit};
    if (b->cap - b->tail >= n)
        return 0;
    if (!buf_reserve(&larger, buf_len(b) + n))
        return -ENOMEM;
    (void)buf_append(&larger, buf_head(b), buf_len(b));
    wipe(b);
    buf_free(b);
    *b = larger;
    return 0;
}

/* Moves the first n bytes of one side's input to the other's output. */
static bool pass(struct side *from, struct side *to, size_t n)
{
    if ((to->secret && reserve_secret(&to->out, n) < 0) ||
        buf_append(&to->out, buf_head(&from->in), n) < 0)
        return false;
    buf_consume(&from->in, n);
    return true;
}

/* --- requests -------------------------------------------------------------------------------- */

/* Host is what TLS was for, with or without the port. */
static bool right_host(const struct conn *c, struct http_text t)
{
    char want[SUBST_HOST_MAX + 8];
    if (http_text_is_nocase(t, c->host))
        return true;
    (void)snprintf(want, sizeof(want), "%s:%u", c->host, c->id.peer.port);
    return http_text_is_nocase(t, want);
}

/* The value of that secret has to be minted first. */
static void await_value(struct conn *c, const char *secret)
{
    const char *why = "is not known";
    int r = c->h->want(c->h, secret, &why);
    c->waiting = r == -EAGAIN;
    if (!c->waiting)
        refuse(c, 502, "secret_unavailable", why);
}

static void send_head(struct conn *c)
{
    static struct buf text = {.limit = SUBST_HEAD_MAX}; /* never moves: see below */
    char why[SUBST_TEXT_MAX];
    config_expire(c->h->config, now_ns());
    if (!text.data && !buf_reserve(&text, SUBST_HEAD_MAX)) {
        finish(c);
        return;
    }
    int r = subst_head(&c->h->config->subst, c->host, &head, &text, why);
    if (r == 0)
        r = reserve_secret(&c->server.out, buf_len(&text));
    if (r == 0)
        r = buf_append(&c->server.out, buf_head(&text), buf_len(&text));
    explicit_bzero(text.data, text.tail);
    buf_reset(&text);
    c->server.secret = true;
    if (r == -EPERM)
        violation(c, why);
    else if (r == -EAGAIN)
        await_value(c, why);
    else if (r < 0)
        refuse(c, 400, "bad_request", "the request is too long with its secrets in place");
}

static bool take_request(struct conn *c)
{
    const char *p = (const char *)buf_head(&c->guest.in), *why = "is malformed";
    char text[SUBST_TEXT_MAX];
    ssize_t n = http_head_end(p, buf_len(&c->guest.in), &c->request_seen);
    if (n == 0)
        return false;
    c->is_head = c->answered = false;
    if (n < 0)
        why = n == -E2BIG ? "has too long a head" : "has a line that ends without CR";
    if (n < 0 || http_request(p, (size_t)n, &head, &why) < 0) {
        (void)snprintf(text, sizeof(text), "the request %s", why);
        refuse(c, 400, "bad_request", text);
        return true;
    }
    c->is_head = http_text_is(head.method, "HEAD");
    if (!right_host(c, head.host)) {
        (void)snprintf(text, sizeof(text), "its Host is not %s, which the connection is for",
                       c->host);
        refuse(c, 421, "wrong_host", text);
        return true;
    }
    c->websocket = head.websocket;
    c->close = head.close;
    http_body_begin(&c->request_body, &head);
    c->search.n = 0;
    send_head(c);
    if (c->ending || c->waiting)
        return c->ending;
    buf_consume(&c->guest.in, (size_t)n);
    c->request_seen = c->response_seen = 0;
    c->request = http_body_done(&c->request_body) ? REQUEST_SENT : REQUEST_BODY;
    c->response = RESPONSE_HEAD;
    return true;
}

/* A piece of the request's body. */
static bool take_request_body(struct conn *c)
{
    const char *p = (const char *)buf_head(&c->guest.in);
    char text[SUBST_TEXT_MAX];
    enum http_piece what;
    ssize_t n = http_body_step(&c->request_body, p, buf_len(&c->guest.in), &what);
    if (n == 0)
        return false;
    if (n < 0) {
        refuse(c, 400, "bad_request", "the request has a malformed body");
        return true;
    }
    if (what == HTTP_PIECE_TRAILER)
        c->search.n = 0;
    const struct subst_secret *x = what == HTTP_PIECE_FRAME
                                       ? NULL
                                       : subst_find(&c->h->config->subst, &c->search, p, (size_t)n);
    if (x) {
        (void)snprintf(text, sizeof(text), "secret %s may not be in %s", x->name,
                       what == HTTP_PIECE_TRAILER ? "trailers" : "the body");
        violation(c, text);
        return true;
    }
    if (!pass(&c->guest, &c->server, (size_t)n))
        finish(c);
    else if (http_body_done(&c->request_body))
        c->request = REQUEST_SENT;
    return true;
}

/* --- responses ------------------------------------------------------------------------------- */

static void bad_response(struct conn *c, const char *why)
{
    char text[SUBST_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "the response of %s %s", c->host, why);
    refuse(c, 502, "bad_response", text);
}

/* The server agrees to speak something else from here on. */
static void switch_protocols(struct conn *c, size_t n)
{
    if (!c->websocket || !head.websocket || c->request != REQUEST_SENT) {
        bad_response(c, "switches protocols, which was not asked for");
        return;
    }
    c->tunnel = pass(&c->server, &c->guest, n);
    if (!c->tunnel)
        finish(c);
}

static bool take_response(struct conn *c)
{
    const char *p = (const char *)buf_head(&c->server.in), *why = "has a malformed head";
    ssize_t n = http_head_end(p, buf_len(&c->server.in), &c->response_seen);
    if (n == 0)
        return false;
    if (n < 0 || http_response(p, (size_t)n, c->is_head, &head, &why) < 0) {
        bad_response(c, why);
        return true;
    }
    c->response_seen = 0;
    if (head.status == 101) {
        switch_protocols(c, (size_t)n);
        return true;
    }
    if (!pass(&c->server, &c->guest, (size_t)n)) {
        finish(c);
        return true;
    }
    if (head.status < 200) /* another one follows */
        return true;
    c->answered = true;
    c->close |= head.close;
    http_body_begin(&c->response_body, &head);
    c->response = http_body_done(&c->response_body) ? RESPONSE_DONE : RESPONSE_BODY;
    return true;
}

static bool take_response_body(struct conn *c)
{
    enum http_piece what;
    ssize_t n = http_body_step(&c->response_body, (const char *)buf_head(&c->server.in),
                               buf_len(&c->server.in), &what);
    if (n == 0)
        return false;
    if (n < 0 || !pass(&c->server, &c->guest, (size_t)n))
        c->cut = true; /* there is no other way to say so by now */
    else if (http_body_done(&c->response_body))
        c->response = RESPONSE_DONE;
    return true;
}

/* --- steps ----------------------------------------------------------------------------------- */

static bool step_tunnel(struct conn *c)
{
    bool any = false;
    size_t n = buf_len(&c->guest.in);
    if (n > 0 && room(&c->server))
        any = pass(&c->guest, &c->server, n);
    n = buf_len(&c->server.in);
    if (n > 0 && room(&c->guest))
        any |= pass(&c->server, &c->guest, n);
    return any;
}

static bool step_request(struct conn *c)
{
    if (buf_len(&c->guest.in) == 0 || !room(&c->server) || c->waiting)
        return false;
    if (c->request == REQUEST_HEAD)
        return take_request(c);
    return c->request == REQUEST_BODY && take_request_body(c);
}

static bool step_response(struct conn *c)
{
    if (buf_len(&c->server.in) == 0 || !room(&c->guest))
        return false;
    switch (c->response) {
    case RESPONSE_NONE:
        c->cut = true; /* nobody has asked */
        return true;
    case RESPONSE_HEAD:
        return take_response(c);
    case RESPONSE_BODY:
        return take_response_body(c);
    default:
        return false;
    }
}

/* Both are complete: the next request, or the end. */
static bool step_exchange(struct conn *c)
{
    if (c->request != REQUEST_SENT || c->response != RESPONSE_DONE)
        return false;
    if (c->close) {
        finish(c);
        return true;
    }
    c->request = REQUEST_HEAD;
    c->response = RESPONSE_NONE;
    c->answered = false;
    return true;
}

/* What the end of one side means, when nothing more can be made of what has come from it. */
static bool step_ends(struct conn *c)
{
    if (c->server.eof && c->response == RESPONSE_HEAD && buf_len(&c->server.in) > 0 &&
        room(&c->guest) && !c->tunnel) {
        bad_response(c, "ends in its head");
        return true;
    }
    if (c->server.eof && (buf_len(&c->server.in) == 0 || room(&c->guest))) {
        bool whole = c->response == RESPONSE_NONE || c->response == RESPONSE_DONE || c->tunnel ||
                     (c->response == RESPONSE_BODY && c->response_body.framing == HTTP_UNTIL_END &&
                      c->server.clean);
        c->cut |= !whole;
        finish(c);
        return true;
    }
    if (!c->guest.eof || c->waiting || (buf_len(&c->guest.in) > 0 && !room(&c->server)))
        return false;
    if (c->tunnel ? buf_len(&c->server.out) == 0 : c->request != REQUEST_SENT) {
        finish(c);
        return true;
    }
    return false;
}

static bool step(struct conn *c)
{
    if (c->ending || c->cut)
        return false;
    if (c->server.failed && !c->server.ready) {
        if (buf_len(&c->guest.in) == 0 && !c->guest.eof)
            return false; /* it is told when it asks */
        refuse(c, 502, "server_not_trusted", c->trouble);
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

/* All is said: wait for the client to hang up, so that nothing it still sends becomes a reset that
 * overtakes our answer. */
static bool linger(struct conn *c)
{
    if (!c->lingering && buf_len(&c->guest.out) == 0) {
        ERR_clear_error();
        (void)SSL_shutdown(c->guest.ssl);
        (void)shutdown(c->guest.src.fd, SHUT_WR);
        c->lingering = true;
        loop_timer_set(c->h->loop, &c->timer, MS(CONN_LINGER_MS));
    }
    wipe(&c->guest.in);
    buf_reset(&c->guest.in);
    return !c->guest.eof || !c->lingering;
}

/* False: the connection is gone. */
static bool handshakes(struct conn *c, bool *any)
{
    if (handshake(&c->guest)) {
        *any = true;
        if (c->guest.failed) {
            if (tls_was_rejected())
                report(
                    c, LINK_UNTRUSTED,
                    "the client does not accept msb's certificate: it may have pinned another, or "
                    "not know SSL_CERT_FILE");
            return false;
        }
    }
    if (handshake(&c->server)) {
        *any = true;
        if (c->server.failed)
            tls_client_error(c->server.ssl, c->host, c->trouble, sizeof(c->trouble));
    }
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
        any |= fill(&c->guest);
        any |= fill(&c->server);
        while (step(c))
            any = true;
        any |= flush(&c->server);
        any |= flush(&c->guest);
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
    (void)events;
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
    c->timer.fn = on_timer;
    c->again.fn = on_again;
    node_append(&h->all, &c->node);
    h->n++;
    int r = side_open(&c->guest, c, guest_fd);
    int k = side_open(&c->server, c, server_fd);
    if (r == 0 && k == 0) {
        c->guest.ssl = tls_server(h->tls, c->host, guest_fd);
        c->server.ssl = tls_client(h->tls, c->host, server_fd);
    }
    if (!c->guest.ssl || !c->server.ssl) {
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
        if (c->waiting) {
            c->waiting = false;
            conn_run(c); /* may end it, but no other */
        }
    }
}
