#include "intercept/exchange.h"

#include "intercept/refusal.h"
#include "intercept/sign.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    /* A body up to this size is read completely before its values are put in, and is sent with its
     * new length; a longer one is sent in chunks. */
    BODY_WHOLE_MAX = 48 * 1024,
};

static struct http_head head; /* one thread, and too large for its stack */

/* --- telling --------------------------------------------------------------------------------- */

/* Sends our own reply to the current request, and ends. */
static void answer(struct conn *c, int status, const char *error, const char *text)
{
    static const char *const reasons[] = {[400 - 400] = "Bad Request",
                                          [403 - 400] = "Forbidden",
                                          [421 - 400] = "Misdirected Request"};
    struct refusal r;
    if (c->answered) { /* too late for that */
        conn_finish(c);
        return;
    }
    refusal_make(&r, c->host, error, text);
    c->answered = true;
    (void)buf_printf(&c->guest.out,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\nConnection: close\r\nMsb-Blocked: %s\r\n\r\n%s",
                     status, status < 500 ? reasons[status - 400] : "Bad Gateway", strlen(r.body),
                     r.text, c->is_head ? "" : r.body);
    conn_finish(c);
}

void conn_refuse(struct conn *c, int status, const char *error, const char *text)
{
    conn_report(c, LINK_REFUSED, text);
    answer(c, status, error, text);
}

static void violation(struct conn *c, const char *text)
{
    conn_report(c, LINK_VIOLATION, text);
    answer(c, 403, "secret_blocked", text);
}

/* --- requests -------------------------------------------------------------------------------- */

/* The value of that secret has to be minted first. */
static void await_value(struct conn *c, const char *secret)
{
    const char *why = "is not known";
    int r = c->h->want(c->h, secret, &why);
    c->waiting = r == -EAGAIN;
    if (!c->waiting)
        conn_refuse(c, 502, "secret_unavailable", why);
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
        conn_refuse(c, 400, "bad_request", "the request is too long with its secrets in place");
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
            conn_refuse(c, 400, "bad_request", "a body this long needs HTTP/1.1 for its secrets");
    }
    return !c->ending;
}

/* Signs a request that the guest has signed with a placeholder (sign=aws). False: not yet, or refused. */
static bool sign_request(struct conn *c, const char *body, size_t have, struct buf *fields)
{
    char why[SUBST_TEXT_MAX];
    int r = sign_head(c->h, c->host, &head, body, have, fields, why);
    if (r == 0 && c->to_server.n > 0 && buf_len(fields) > 0)
        conn_refuse(c, 400, "bad_request", "a body with secrets in it cannot be signed");
    else if (r == -EAGAIN)
        await_value(c, why);
    else if (r == -ENODATA)
        tell_to_continue(c);
    else if (r < 0)
        conn_refuse(c, 400, "bad_request", why);
    return r == 0 && !c->ending;
}

bool conn_take_request(struct conn *c)
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
        conn_refuse(c, 400, "bad_request", text);
        return true;
    }
    c->is_head = http_text_is(head.method, "HEAD");
    if (!http_host_is(head.host, c->host, c->id.peer.port)) {
        (void)snprintf(text, sizeof(text), "its Host is not %s, the host of the connection",
                       c->host);
        conn_refuse(c, 421, "wrong_host", text);
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

bool conn_take_request_body(struct conn *c)
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
        conn_refuse(c, 400, "bad_request", "the request has a malformed body");
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
        conn_finish(c);
    else if (http_body_done(&c->request_body))
        c->request = REQUEST_SENT;
    return true;
}

/* --- responses ------------------------------------------------------------------------------- */

void conn_bad_response(struct conn *c, const char *why)
{
    char text[SUBST_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "the response of %s %s", c->host, why);
    conn_refuse(c, 502, "bad_response", text);
}

/* The server agrees to speak something else from here on. */
static void switch_protocols(struct conn *c, size_t n)
{
    if (!c->websocket || !head.websocket || c->request != REQUEST_SENT) {
        conn_bad_response(c, "switches protocols, which was not asked for");
        return;
    }
    c->tunnel = side_pass(&c->server, &c->guest, n);
    if (!c->tunnel)
        conn_finish(c);
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

bool conn_take_response(struct conn *c)
{
    const char *p = (const char *)buf_head(&c->server.in), *why = "has a malformed head";
    ssize_t n = http_head_end(p, buf_len(&c->server.in), &c->response_seen);
    if (n == 0)
        return false;
    if (n < 0 || http_response(p, (size_t)n, c->is_head, &head, &why) < 0) {
        conn_bad_response(c, why);
        return true;
    }
    c->response_seen = 0;
    if (head.status == 101) {
        switch_protocols(c, (size_t)n);
        return true;
    }
    if (!pass_head(c, p, (size_t)n)) {
        conn_finish(c);
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

bool conn_take_response_body(struct conn *c)
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
