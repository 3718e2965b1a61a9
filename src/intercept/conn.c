#include "intercept/conn.h"

#include "intercept/h2.h"
#include "intercept/refusal.h"
#include "intercept/side.h"
#include "intercept/sign.h"
#include "intercept/swap.h"
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
    /* A body up to this size is read completely before its values are put in, and is sent with its
     * new length; a longer one is sent in chunks. */
    BODY_WHOLE_MAX = 48 * 1024,
};

enum request_state { REQUEST_HEAD, REQUEST_BODY, REQUEST_SENT };
enum response_state { RESPONSE_NONE, RESPONSE_HEAD, RESPONSE_BODY, RESPONSE_DONE };

struct conn {
    struct conn_host *h;
    struct node node;
    struct net_flow_id id;
    char host[SUBST_HOST_MAX];
    struct side guest, server;
    struct tls_pair speak;
    bool plain;    /* there is no TLS */
    struct h2 *h2; /* NULL: it is HTTP/1.1, and all of the following */
    struct loop_timer timer, again;

    enum request_state request;
    enum response_state response;
    struct http_body request_body, response_body;
    struct subst_search search;
    struct swap to_server, to_guest;    /* values in the current bodies */
    bool continued;                     /* the client was told to send its body */
    size_t request_seen, response_seen; /* of heads, for http_head_end() */
    bool is_head, websocket, answered;  /* of the current request */
    unsigned minor;                     /* ... : its version */
    bool waiting;                       /* for the value of a secret in it */
    bool tunnel;                        /* bytes pass unchanged */
    bool close;                         /* after the current response */
    bool ending;                        /* once everything for the guest is sent */
    bool lingering;                     /* everything is sent: what still arrives is dropped */
    bool cut;                           /* without a proper end: the rest is missing */
    bool offered;                       /* the server was told what the client speaks */
    bool over, lost;                    /* of HTTP/2: all of it; the server */
    char trouble[SUBST_TEXT_MAX];       /* why the server's side failed */
};

static struct http_head head; /* one thread, and too large for its stack */

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

static void report(struct conn *c, enum link_report_kind kind, const char *text)
{
    struct link_report r = {.kind = kind, .id = c->id};
    (void)snprintf(r.host, sizeof(r.host), "%s", c->host);
    (void)snprintf(r.text, sizeof(r.text), "%s", text);
    c->h->report(c->h, &r);
}

/* Ends it after sending what is still pending for the guest. */
static void finish(struct conn *c)
{
    c->ending = true;
    side_close(&c->server, c->h->loop);
}

/* Sends our own reply to the current request, and ends. */
static void answer(struct conn *c, int status, const char *error, const char *text)
{
    static const char *const reasons[] = {[400 - 400] = "Bad Request",
                                          [403 - 400] = "Forbidden",
                                          [421 - 400] = "Misdirected Request"};
    struct refusal r;
    if (c->answered) { /* too late for that */
        finish(c);
        return;
    }
    refusal_make(&r, c->host, error, text);
    c->answered = true;
    (void)buf_printf(&c->guest.out,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\nConnection: close\r\nMsb-Blocked: %s\r\n\r\n%s",
                     status, status < 500 ? reasons[status - 400] : "Bad Gateway", strlen(r.body),
                     r.text, c->is_head ? "" : r.body);
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

/* --- requests -------------------------------------------------------------------------------- */

/* The value of that secret has to be minted first. */
static void await_value(struct conn *c, const char *secret)
{
    const char *why = "is not known";
    int r = c->h->want(c->h, secret, &why);
    c->waiting = r == -EAGAIN;
    if (!c->waiting)
        refuse(c, 502, "secret_unavailable", why);
}

/* Sends its content, if nothing went wrong, and empties it. */
static int send_scratch(struct conn *c, struct buf *b, int r)
{
    c->server.secret = true;
    return swap_take_scratch(b, r, &c->server.out);
}

static void failed_to_send(struct conn *c, int r, const char *why)
{
    if (r == -EPERM)
        violation(c, why);
    else if (r == -EAGAIN)
        await_value(c, why);
    else if (r < 0)
        refuse(c, 400, "bad_request", "the request is too long with its secrets in place");
}

static void send_head(struct conn *c)
{
    char why[SUBST_TEXT_MAX];
    struct buf *text = swap_scratch(SWAP_HEAD);
    int r = text ? subst_head(&c->h->config->subst, c->host, &head, text, why) : -ENOMEM;
    failed_to_send(c, send_scratch(c, text, r), why);
}

/* Sends a body that is in SWAP_BODY, or only empties that if its head was not sent. If there is no
 * room, the head does not leave either: the next request would become its body. */
static void send_whole_body(struct conn *c)
{
    bool stopped = c->ending || c->waiting;
    int r = send_scratch(c, swap_scratch(SWAP_BODY), stopped ? -ECANCELED : 0);
    if (!stopped)
        failed_to_send(c, r, "");
}

/* Refuses a placeholder that may not be in the body, or in its trailers. */
static bool body_ok(struct conn *c, enum http_piece what, const char *p, size_t n)
{
    char text[SUBST_TEXT_MAX];
    const struct swap *allowed = what == HTTP_PIECE_DATA ? &c->to_server : NULL;
    if (what == HTTP_PIECE_TRAILER)
        c->search.n = 0;
    const struct subst_secret *x =
        what == HTTP_PIECE_FRAME ? NULL
                                 : subst_find(&c->h->config->subst, allowed, &c->search, p, n);
    if (!x)
        return true;
    (void)snprintf(text, sizeof(text), "secret %s may not be in %s", x->name,
                   what == HTTP_PIECE_TRAILER ? "trailers" : "the body");
    violation(c, text);
    return false;
}

static void tell_to_continue(struct conn *c)
{
    if (head.expects && !c->continued)
        (void)buf_printf(&c->guest.out, "HTTP/1.1 100 Continue\r\n\r\n");
    c->continued = true;
}

/* Takes a body short enough to be sent with its length. False: it is incomplete, or refused. */
static bool take_whole_body(struct conn *c, const char *body, size_t have)
{
    static char length[24];
    struct buf *text = swap_scratch(SWAP_BODY);
    if (have < head.length) {
        tell_to_continue(c);
        return false;
    }
    if (!body_ok(c, HTTP_PIECE_DATA, body, head.length))
        return false;
    int r = text ? swap_run(&c->to_server, body, head.length, true, text) : -ENOMEM;
    if (r < 0) {
        failed_to_send(c, send_scratch(c, text, r), "");
        return false;
    }
    (void)snprintf(length, sizeof(length), "%zu", buf_len(text));
    http_head_drop(&head, "content-length");
    http_head_drop(&head, "expect");
    return http_head_add(&head, "Content-Length", length);
}

/* Prepares the body of the request whose head is n bytes long at p. *whole: it is in SWAP_BODY.
 * False: it is incomplete, or refused. */
static bool prepare_body(struct conn *c, const char *p, size_t n, bool *whole)
{
    char why[SUBST_TEXT_MAX];
    const struct subst *s = &c->h->config->subst;
    config_expire(c->h->config, now_ns());
    c->search.n = 0;
    int r = swap_for_request(&c->to_server, s, c->host, &head, why);
    if (r < 0) {
        failed_to_send(c, r, why);
        return false;
    }
    *whole = c->to_server.n > 0 && head.framing == HTTP_LENGTH && head.length <= BODY_WHOLE_MAX;
    if (*whole)
        return take_whole_body(c, p + n, buf_len(&c->guest.in) - n);
    if (c->to_server.n > 0 && head.framing == HTTP_LENGTH) {
        http_head_drop(&head, "content-length");
        (void)http_head_add(&head, "Transfer-Encoding", "chunked");
        if (head.minor == 0)
            refuse(c, 400, "bad_request", "a body this long needs HTTP/1.1 for its secrets");
    }
    return !c->ending;
}

/* Signs a request that the guest has signed with a placeholder (sign=aws). False: not yet, or refused. */
static bool sign_request(struct conn *c, const char *body, size_t have, struct buf *fields)
{
    char why[SUBST_TEXT_MAX];
    int r = sign_head(c->h, c->host, &head, body, have, fields, why);
    if (r == 0 && c->to_server.n > 0 && buf_len(fields) > 0)
        refuse(c, 400, "bad_request", "a body with secrets in it cannot be signed");
    else if (r == -EAGAIN)
        await_value(c, why);
    else if (r == -ENODATA)
        tell_to_continue(c);
    else if (r < 0)
        refuse(c, 400, "bad_request", why);
    return r == 0 && !c->ending;
}

static bool take_request(struct conn *c)
{
    AUTO_WIPE struct buf fields = {.limit = SUBST_HEAD_MAX};
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
    if (!http_host_is(head.host, c->host, c->id.peer.port)) {
        (void)snprintf(text, sizeof(text), "its Host is not %s, the host of the connection",
                       c->host);
        refuse(c, 421, "wrong_host", text);
        return true;
    }
    head.plain = c->plain;
    c->websocket = head.websocket;
    c->close = head.close;
    c->minor = head.minor;
    http_body_begin(&c->request_body, &head);
    size_t length = (size_t)head.length;
    bool whole = false;
    if (!prepare_body(c, p, (size_t)n, &whole) ||
        !sign_request(c, p + n, buf_len(&c->guest.in) - (size_t)n, &fields)) {
        if (whole) /* or it would be part of the next one, of any connection */
            (void)swap_take_scratch(swap_scratch(SWAP_BODY), -ECANCELED, NULL);
        return c->ending;
    }
    if (swap_for_response(&c->to_guest, &c->h->config->subst, c->host) < 0 || c->to_guest.n > 0)
        http_head_drop(&head, "accept-encoding"); /* compressed data cannot be searched */
    send_head(c);
    if (whole)
        send_whole_body(c);
    if (c->ending || c->waiting)
        return c->ending;
    buf_consume(&c->guest.in, (size_t)n + (whole ? length : 0));
    c->request_seen = c->response_seen = 0;
    c->continued = false;
    c->request = whole || http_body_done(&c->request_body) ? REQUEST_SENT : REQUEST_BODY;
    c->response = RESPONSE_HEAD;
    return true;
}

/* A piece of the request's body. */
static bool take_request_body(struct conn *c)
{
    const char *p = (const char *)buf_head(&c->guest.in);
    size_t have = buf_len(&c->guest.in);
    enum http_piece what;
    if (c->to_server.n > 0 && c->request_body.at == HTTP_BYTES)
        have = MIN(have, (size_t)SWAP_PIECE);
    ssize_t n = http_body_step(&c->request_body, p, have, &what);
    if (n == 0)
        return false;
    if (n < 0) {
        refuse(c, 400, "bad_request", "the request has a malformed body");
        return true;
    }
    if (!body_ok(c, what, p, (size_t)n))
        return true;
    bool ok = true;
    if (c->to_server.n > 0) {
        struct buf *text = swap_scratch(SWAP_BODY);
        int r =
            text ? swap_piece(&c->to_server, &c->request_body, what, p, (size_t)n, text) : -ENOMEM;
        ok = send_scratch(c, text, r) == 0;
        buf_consume(&c->guest.in, (size_t)n);
    } else {
        ok = side_pass(&c->guest, &c->server, (size_t)n);
    }
    if (!ok)
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
    c->tunnel = side_pass(&c->server, &c->guest, n);
    if (!c->tunnel)
        finish(c);
}

/* The body's length will be another. A client of HTTP/1.0 knows no chunks: for it, the body ends
 * with the connection. */
static bool drop_length(struct conn *c)
{
    http_head_drop(&head, "content-length");
    if (c->minor > 0)
        return http_head_add(&head, "Transfer-Encoding", "chunked");
    c->close = true;
    http_head_drop(&head, "connection");
    return http_head_add(&head, "Connection", "close");
}

/* Replaces values with placeholders, if requested. */
static bool pass_head(struct conn *c, const char *p, size_t n)
{
    AUTO_WIPE struct buf text = {.limit = SUBST_HEAD_MAX};
    struct buf *to = &c->guest.out;
    if (c->to_guest.n == 0)
        return side_pass(&c->server, &c->guest, n);
    const char *end = memchr(p, '\r', n);
    if (head.framing == HTTP_LENGTH && head.length > 0 && !drop_length(c))
        return false;
    int r = buf_append(&text, p, end ? (size_t)(end - p) : 0);
    for (size_t i = 0; r == 0 && i < head.n; i++) {
        const struct http_field *f = &head.field[i];
        r = buf_printf(&text, "\r\n%.*s: ", (int)f->name.n, f->name.p);
        if (r == 0)
            r = buf_append(&text, f->value.p, f->value.n);
    }
    if (r == 0)
        r = buf_append(&text, "\r\n\r\n", 4);
    if (r == 0)
        r = swap_run(&c->to_guest, (const char *)buf_head(&text), buf_len(&text), true, to);
    buf_consume(&c->server.in, n);
    return r == 0;
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
    if (!pass_head(c, p, (size_t)n)) {
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
    const char *p = (const char *)buf_head(&c->server.in);
    size_t have = buf_len(&c->server.in);
    enum http_piece what;
    if (c->to_guest.n > 0 && c->response_body.at == HTTP_BYTES)
        have = MIN(have, (size_t)SWAP_PIECE);
    ssize_t n = http_body_step(&c->response_body, p, have, &what);
    if (n == 0)
        return false;
    bool ok = n > 0;
    if (ok && c->to_guest.n > 0) {
        const struct http_body *b = &c->response_body;
        bool chunks = c->minor > 0 || b->framing != HTTP_LENGTH;
        struct buf *out = &c->guest.out;
        int r = chunks ? swap_piece(&c->to_guest, b, what, p, (size_t)n, out)
                       : swap_run(&c->to_guest, p, (size_t)n, http_body_done(b), out);
        ok = r == 0;
        buf_consume(&c->server.in, (size_t)n);
    } else if (ok) {
        ok = side_pass(&c->server, &c->guest, (size_t)n);
    }
    if (!ok)
        c->cut = true; /* too late to reply with an error */
    else if (http_body_done(&c->response_body))
        c->response = RESPONSE_DONE;
    return true;
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
    report(arg, kind, text);
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
        finish(c);
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
        return take_request(c);
    return c->request == REQUEST_BODY && take_request_body(c);
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
        return take_response(c);
    case RESPONSE_BODY:
        return take_response_body(c);
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
        finish(c);
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
        bad_response(c, "ends in its head");
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
        finish(c);
        return true;
    }
    if (!c->guest.eof || c->waiting || (buf_len(&c->guest.in) > 0 && !side_room(&c->server)))
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
    if (c->h2)
        return step_h2(c);
    if (c->server.failed && !c->server.ready) {
        if (buf_len(&c->guest.in) == 0 && !c->guest.eof)
            return false; /* it is told when it sends a request */
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
        report(c, LINK_UNTRUSTED,
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
