#include "intercept/h2_stream.h"

#include "intercept/refusal.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { DATA_MAX = 2 * H2_WINDOW }; /* of one direction, with values in it */

/* One thread, and too large for its stack. */
static struct http_head head;
static nghttp2_nv nv[H2_FIELDS_MAX];

/* --- life ------------------------------------------------------------------------------------ */

void h2_head_reset(struct h2_head *x)
{
    buf_wipe(&x->text);
    x->text.limit = HTTP_HEAD_MAX;
    x->n = 0;
    x->too_long = false;
}

/* x may be NULL. */
static void head_free(struct h2_head *x)
{
    if (x)
        h2_head_reset(x);
    free(x);
}

/* Takes ownership of what was read. NULL: out of memory. */
static struct h2_head *head_steal(struct h2_head *from)
{
    struct h2_head *x = malloc(sizeof(*x));
    if (!x)
        return NULL;
    *x = *from;
    from->text = (struct buf){0};
    h2_head_reset(from);
    return x;
}

static struct http_text text_of(const struct h2_head *x, size_t at, size_t n)
{
    return (struct http_text){(const char *)buf_head(&x->text) + at, n};
}

struct h2_stream *h2_stream_new(struct h2 *h, int32_t guest_id)
{
    struct h2_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->h = h;
    s->id[H2_GUEST] = guest_id;
    s->id[H2_SERVER] = -1;
    s->open[H2_GUEST] = true;
    s->raw.limit = s->pipe[H2_GUEST].data.limit = s->pipe[H2_SERVER].data.limit = DATA_MAX;
    node_append(&h->streams, &s->node);
    return s;
}

static void stop_waiting(struct h2_stream *s)
{
    if (!s->held)
        return;
    s->h->n_waiting--;
    s->h->held -= buf_len(&s->held->text);
    head_free(s->held);
    s->held = NULL;
}

void h2_stream_free(struct h2_stream *s)
{
    stop_waiting(s);
    for (unsigned i = 0; i < 2; i++) {
        buf_wipe(&s->pipe[i].data);
        swap_end(&s->pipe[i].swap);
        head_free(s->pipe[i].trailers);
    }
    buf_wipe(&s->raw);
    node_unlink(&s->node);
    free(s);
}

/* --- what there is to send ------------------------------------------------------------------- */

/* Gives window back to the side that sent n bytes, which were passed on or dropped. */
static void consume(struct h2_stream *s, enum h2_side from, size_t n)
{
    if (n > 0 && s->h->session[from] &&
        nghttp2_session_consume(s->h->session[from], s->id[from], n) != 0)
        s->h->broken = true;
}

static void drop_data(struct h2_stream *s, enum h2_side to)
{
    struct h2_pipe *p = &s->pipe[to];
    buf_wipe(&p->data);
    consume(s, !to, p->owed);
    p->owed = 0;
}

void h2_stream_sent(struct h2_stream *s, enum h2_side to, size_t n)
{
    struct h2_pipe *p = &s->pipe[to];
    buf_consume(&p->data, n);
    size_t back = buf_len(&p->data) == 0 ? p->owed : MIN(p->owed, n);
    p->owed -= back;
    consume(s, !to, back);
}

static void wake(struct h2_stream *s, enum h2_side to)
{
    if (s->open[to]) /* it is an error if nothing waits */
        (void)nghttp2_session_resume_data(s->h->session[to], s->id[to]);
}

static void stream_reset(struct h2_stream *s, enum h2_side side, uint32_t code)
{
    if (s->open[side] &&
        nghttp2_submit_rst_stream(s->h->session[side], NGHTTP2_FLAG_NONE, s->id[side], code) != 0)
        s->h->broken = true;
}

/* The client may try again. */
static void turn_away(struct h2_stream *s)
{
    s->refused = true;
    stream_reset(s, H2_GUEST, NGHTTP2_REFUSED_STREAM);
}

static size_t put_nv(size_t n, struct http_text name, struct http_text value, uint8_t flags)
{
    nv[n] = (nghttp2_nv){.name = (uint8_t *)(uintptr_t)name.p,
                         .namelen = name.n,
                         .value = (uint8_t *)(uintptr_t)value.p,
                         .valuelen = value.n,
                         .flags = flags};
    return n + 1;
}

static size_t put_nv_text(size_t n, const char *name, const char *value)
{
    return put_nv(n, (struct http_text){name, strlen(name)},
                  (struct http_text){value, strlen(value)}, NGHTTP2_NV_FLAG_NONE);
}

/* The field's value, with secrets replaced by placeholders. -ENOENT: there is a secret in its
 * name. */
static int scrubbed(struct swap *w, struct http_text name, struct http_text *value,
                    struct buf *text)
{
    size_t at = buf_len(text);
    int r = swap_run(w, name.p, name.n, true, text);
    if (r == 0 &&
        (buf_len(text) - at != name.n || memcmp(buf_head(text) + at, name.p, name.n) != 0))
        return -ENOENT;
    at = buf_len(text);
    if (r == 0)
        r = swap_run(w, value->p, value->n, true, text);
    *value = (struct http_text){(const char *)buf_head(text) + at, buf_len(text) - at};
    return r;
}

/* Copies fields that are passed on; returns how many, or -E2BIG. Those for the guest are scrubbed
 * of values (scrub=response). */
static int copy_fields(struct h2_stream *s, enum h2_side to, const struct h2_head *x,
                       struct buf *text)
{
    struct swap *w = &s->pipe[H2_GUEST].swap;
    size_t n = 0;
    for (size_t i = 0; i < x->n; i++) {
        struct http_text name = text_of(x, x->field[i].name, x->field[i].name_len);
        struct http_text value = text_of(x, x->field[i].value, x->field[i].value_len);
        if (to == H2_GUEST && w->n > 0) {
            int r = scrubbed(w, name, &value, text);
            if (r == -ENOENT || http_text_is(name, "content-length"))
                continue;
            if (r < 0)
                return -E2BIG;
        }
        n = put_nv(n, name, value, x->field[i].flags);
    }
    return (int)n;
}

static int send_trailers(struct h2_stream *s, enum h2_side to)
{
    struct buf *text = swap_scratch(SWAP_HEAD);
    int n = text ? copy_fields(s, to, s->pipe[to].trailers, text) : -ENOMEM;
    int r = n < 0 ? n : nghttp2_submit_trailer(s->h->session[to], s->id[to], nv, (size_t)n);
    if (text)
        (void)swap_take_scratch(text, -ECANCELED, NULL);
    return r;
}

/* Says how much of a body can be sent; h2.c sends it. */
static ssize_t on_read(nghttp2_session *session, int32_t id, uint8_t *buf, size_t most,
                       uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    struct h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (!s)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    enum h2_side to = session == s->h->session[H2_GUEST] ? H2_GUEST : H2_SERVER;
    struct h2_pipe *p = &s->pipe[to];
    size_t n = MIN(buf_len(&p->data), most);
    if (n == 0 && !p->eof)
        return NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (p->eof && n == buf_len(&p->data)) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (p->trailers && p->trailers->n > 0) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            if (send_trailers(s, to) != 0)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    }
    return (ssize_t)n;
}

static const nghttp2_data_provider provider = {.read_callback = on_read};

/* --- refusing -------------------------------------------------------------------------------- */

/* Sends our own reply. */
static void answer(struct h2_stream *s, unsigned status, const char *error, const char *text)
{
    struct refusal r;
    char code[16], length[24];
    stop_waiting(s);
    buf_wipe(&s->raw);
    s->refused = true;
    stream_reset(s, H2_SERVER, NGHTTP2_CANCEL);
    drop_data(s, H2_SERVER);
    drop_data(s, H2_GUEST);
    if (!s->open[H2_GUEST])
        return;
    if (s->answered) { /* too late for that */
        stream_reset(s, H2_GUEST, NGHTTP2_CANCEL);
        return;
    }
    s->answered = true;
    refusal_make(&r, s->h->env.host, error, text);
    (void)snprintf(code, sizeof(code), "%u", status);
    (void)snprintf(length, sizeof(length), "%zu", strlen(r.body));
    size_t n = put_nv_text(0, ":status", code);
    n = put_nv_text(n, "content-type", "application/json");
    n = put_nv_text(n, "content-length", length);
    n = put_nv_text(n, "msb-blocked", r.text);
    s->pipe[H2_GUEST].eof = true;
    if (!s->is_head && buf_append(&s->pipe[H2_GUEST].data, r.body, strlen(r.body)) < 0)
        s->h->broken = true;
    if (nghttp2_submit_response(s->h->session[H2_GUEST], s->id[H2_GUEST], nv, n,
                                s->is_head ? NULL : &provider) != 0)
        s->h->broken = true;
}

static void refuse(struct h2_stream *s, unsigned status, const char *error, const char *text)
{
    s->h->env.report(s->h->env.arg, LINK_REFUSED, text);
    answer(s, status, error, text);
}

static void bad_request(struct h2_stream *s, const char *why)
{
    char text[SUBST_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "the request %s", why);
    refuse(s, 400, "bad_request", text);
}

static void violation(struct h2_stream *s, const char *text)
{
    s->h->env.report(s->h->env.arg, LINK_VIOLATION, text);
    answer(s, 403, "secret_blocked", text);
}

void h2_stream_bad_response(struct h2_stream *s, const char *why)
{
    char text[SUBST_TEXT_MAX];
    (void)snprintf(text, sizeof(text), "the response of %s %s", s->h->env.host, why);
    if (!s->refused)
        refuse(s, 502, "bad_response", text);
}

/* --- requests -------------------------------------------------------------------------------- */

/* Fills in `head` from what was read. */
static bool read_head(const struct h2_head *x, struct http_text *scheme, const char **status)
{
    head.n = 0;
    head.method = head.target = head.host = *scheme = (struct http_text){"", 0};
    for (size_t i = 0; i < x->n; i++) {
        struct http_text name = text_of(x, x->field[i].name, x->field[i].name_len);
        struct http_text value = text_of(x, x->field[i].value, x->field[i].value_len);
        if (http_text_is(name, ":method"))
            head.method = value;
        else if (http_text_is(name, ":path"))
            head.target = value;
        else if (http_text_is(name, ":authority"))
            head.host = value;
        else if (http_text_is(name, ":scheme"))
            *scheme = value;
        else if (http_text_is(name, ":status"))
            *status = value.p;
        else if (head.n == HTTP_FIELDS_MAX)
            return false;
        else
            head.field[head.n++] = (struct http_field){name, value};
    }
    return true;
}

/* Checks that it is a request that could be sent at all. */
static bool check_request(struct h2_stream *s, const struct h2_head *x)
{
    struct http_text scheme;
    const char *why = "has too long a head", *none = NULL;
    char text[SUBST_TEXT_MAX];
    bool fits = read_head(x, &scheme, &none) && !x->too_long;
    s->is_head = http_text_is(head.method, "HEAD");
    if (fits)
        why = "has a scheme other than https";
    if (!fits || !http_text_is_nocase(scheme, "https") || http_request_fields(&head, &why) < 0) {
        bad_request(s, why);
        return false;
    }
    if (!http_host_is(head.host, s->h->env.host, s->h->env.port)) {
        (void)snprintf(text, sizeof(text), "its Host is not %s, the host of the connection",
                       s->h->env.host);
        refuse(s, 421, "wrong_host", text);
        return false;
    }
    if (s->h->env.trouble[0]) {
        refuse(s, 502, "server_not_trusted", s->h->env.trouble);
        return false;
    }
    if (s->h->server_gone) { /* on another connection */
        turn_away(s);
        return false;
    }
    return true;
}

/* The text from `at` on replaces `was`: a value in it must not get into compression tables. */
static size_t put_substituted(struct h2_stream *s, size_t n, const struct http_field *was,
                              uint8_t flags, const struct buf *text, size_t at)
{
    struct http_text is = {(const char *)buf_head(text) + at, buf_len(text) - at};
    bool same = is.n == was->value.n && memcmp(is.p, was->value.p, is.n) == 0;
    s->h->secrets |= !same;
    return put_nv(n, was->name, is, same ? flags : NGHTTP2_NV_FLAG_NO_INDEX);
}

/* The client's flags for a field that was read from x. */
static uint8_t flags_of(const struct h2_head *x, const struct http_field *f)
{
    for (size_t i = 0; i < x->n; i++)
        if (text_of(x, x->field[i].name, 0).p == f->name.p)
            return x->field[i].flags;
    return NGHTTP2_NV_FLAG_NONE;
}

/* The fields of x, which are in `head`, as sent to the server; returns how many, or an error as in
 * subst_head(). */
static int substitute(struct h2_stream *s, const struct h2_head *x, const struct subst *secrets,
                      struct buf *text, char why[SUBST_TEXT_MAX])
{
    const char *host = s->h->env.host;
    const struct http_field path = {{":path", 5}, head.target};
    size_t n = put_nv(0, (struct http_text){":method", 7}, head.method, NGHTTP2_NV_FLAG_NONE);
    n = put_nv_text(n, ":scheme", "https");
    n = put_nv(n, (struct http_text){":authority", 10}, head.host, NGHTTP2_NV_FLAG_NONE);
    int r = subst_target(secrets, host, &head, text, why);
    if (r < 0)
        return r;
    n = put_substituted(s, n, &path, NGHTTP2_NV_FLAG_NONE, text, 0);
    for (size_t i = 0; i < head.n; i++) {
        size_t at = buf_len(text);
        r = subst_value(secrets, host, &head, i, text, why);
        if (r < 0)
            return r;
        n = put_substituted(s, n, &head.field[i], flags_of(x, &head.field[i]), text, at);
    }
    return (int)n;
}

/* Keeps the request until a value is there. */
static void await_value(struct h2_stream *s, struct h2_head *x, const char *secret)
{
    const char *why = "is not known";
    int r = s->h->env.want(s->h->env.arg, secret, &why);
    if (r != -EAGAIN) {
        refuse(s, 502, "secret_unavailable", why);
        return;
    }
    if (s->held) /* again */
        return;
    size_t n = buf_len(&x->text);
    if (s->h->held + n > H2_HEADS_MAX || !(s->held = head_steal(x))) {
        turn_away(s);
        return;
    }
    s->h->held += n;
    s->h->n_waiting++;
}

static void failed_to_send(struct h2_stream *s, struct h2_head *x, int r, const char *why)
{
    if (r == -EPERM)
        violation(s, why);
    else if (r == -EAGAIN)
        await_value(s, x, why);
    else
        refuse(s, 400, "bad_request", "the request is too long with its secrets in place");
}

/* Counts the n fields as queued for the server. False: too much is. */
static bool count_queued(struct h2_stream *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->queued += nv[i].namelen + nv[i].valuelen;
    s->h->queued += s->queued;
    return s->h->queued <= H2_HEADS_MAX;
}

void h2_stream_dequeued(struct h2_stream *s)
{
    s->h->queued -= s->queued;
    s->queued = 0;
}

static int send_request(struct h2_stream *s, const struct h2_head *x, const struct subst *secrets,
                        char why[SUBST_TEXT_MAX])
{
    struct buf *text = swap_scratch(SWAP_HEAD);
    if (!text)
        return -ENOMEM;
    int n = substitute(s, x, secrets, text, why);
    int32_t id = -1;
    if (n >= 0 && count_queued(s, (size_t)n)) {
        id = nghttp2_submit_request(s->h->session[H2_SERVER], NULL, nv, (size_t)n,
                                    head.framing == HTTP_EMPTY ? NULL : &provider, s);
        s->id[H2_SERVER] = id;
        s->open[H2_SERVER] = id > 0;
    }
    (void)swap_take_scratch(text, -ECANCELED, NULL);
    if (n >= 0 && id <= 0) { /* too many wait, there are no more numbers, or no memory */
        h2_stream_dequeued(s);
        turn_away(s);
    }
    return n < 0 ? n : 0;
}

void h2_stream_request(struct h2_stream *s, struct h2_head *x)
{
    char why[SUBST_TEXT_MAX];
    if (!check_request(s, x))
        return;
    const struct subst *secrets = s->h->env.secrets(s->h->env.arg);
    head.framing = s->ended[H2_GUEST] && buf_len(&s->raw) == 0 && !s->pipe[H2_SERVER].trailers
                       ? HTTP_EMPTY
                       : HTTP_CHUNKED;
    http_head_drop(&head, "host");
    struct swap *to_server = &s->pipe[H2_SERVER].swap, *to_guest = &s->pipe[H2_GUEST].swap;
    int r = swap_for_request(to_server, secrets, s->h->env.host, &head, why);
    if (r == 0 && to_server->n > 0)
        http_head_drop(&head, "content-length");
    if (r == 0)
        r = swap_for_response(to_guest, secrets, s->h->env.host);
    if (r == 0 && to_guest->n > 0)
        http_head_drop(&head, "accept-encoding"); /* compressed data cannot be searched */
    if (r == 0)
        r = send_request(s, x, secrets, why);
    if (r < 0)
        failed_to_send(s, x, r, why);
}

void h2_stream_resume(struct h2_stream *s)
{
    if (!s->held || s->refused)
        return;
    h2_stream_request(s, s->held);
    if (!s->open[H2_SERVER])
        return; /* it still waits, or was refused */
    stop_waiting(s);
    AUTO_WIPE struct buf raw = s->raw;
    s->raw = (struct buf){.limit = DATA_MAX};
    s->pipe[H2_SERVER].owed -= buf_len(&raw);
    while (buf_len(&raw) > 0) {
        size_t n = MIN(buf_len(&raw), (size_t)SWAP_PIECE);
        h2_stream_data(s, H2_GUEST, (const char *)buf_head(&raw), n);
        buf_consume(&raw, n);
    }
    if (s->ended[H2_GUEST])
        h2_stream_end(s, H2_GUEST);
}

/* --- responses ------------------------------------------------------------------------------- */

void h2_stream_response(struct h2_stream *s, struct h2_head *x)
{
    struct http_text scheme;
    const char *status = NULL;
    nghttp2_session *to = s->h->session[H2_GUEST];
    int r = 0;
    if (s->refused || !s->open[H2_GUEST])
        return;
    struct buf *text = swap_scratch(SWAP_HEAD);
    if (!text || x->too_long || !read_head(x, &scheme, &status) || !status) {
        h2_stream_bad_response(s, "has a malformed head");
        return;
    }
    bool final = *status != '1';
    int n = copy_fields(s, H2_GUEST, x, text);
    if (n > 0 && !final) {
        r = nghttp2_submit_headers(to, NGHTTP2_FLAG_NONE, s->id[H2_GUEST], NULL, nv, (size_t)n,
                                   NULL);
    } else if (n > 0) {
        s->answered = true;
        r = nghttp2_submit_response(to, s->id[H2_GUEST], nv, (size_t)n,
                                    s->ended[H2_SERVER] ? NULL : &provider);
    }
    s->h->broken |= r < 0;
    (void)swap_take_scratch(text, -ECANCELED, NULL);
    if (n <= 0)
        h2_stream_bad_response(s, "has too long a head");
}

/* --- bodies ---------------------------------------------------------------------------------- */

/* Checks that the request has no placeholder but those that `allowed` replaces. */
static bool may_pass(struct h2_stream *s, const struct swap *allowed, const char *p, size_t n,
                     const char *where)
{
    char text[SUBST_TEXT_MAX];
    const struct subst_secret *x =
        subst_find(s->h->env.secrets(s->h->env.arg), allowed, &s->search, p, n);
    if (!x)
        return true;
    (void)snprintf(text, sizeof(text), "secret %s may not be in %s", x->name, where);
    violation(s, text);
    return false;
}

/* Appends to the pipe, with texts replaced where required. */
static int pour(struct h2_stream *s, enum h2_side to, const char *p, size_t n, bool last)
{
    struct h2_pipe *pipe = &s->pipe[to];
    if (pipe->swap.n == 0)
        return buf_append(&pipe->data, p, n);
    struct buf *text = swap_scratch(SWAP_BODY);
    int r = text ? swap_run(&pipe->swap, p, n, last, text) : -ENOMEM;
    s->h->secrets |= to == H2_SERVER;
    return swap_take_scratch(text, r, &pipe->data);
}

void h2_stream_data(struct h2_stream *s, enum h2_side from, const char *p, size_t n)
{
    enum h2_side to = !from;
    if (s->refused || (!s->open[to] && !s->held)) {
        consume(s, from, n);
        return;
    }
    s->pipe[to].owed += n;
    if (s->held && from == H2_GUEST) {
        s->h->broken |= buf_append(&s->raw, p, n) < 0;
        return;
    }
    if (from == H2_GUEST && !may_pass(s, &s->pipe[H2_SERVER].swap, p, n, "the body"))
        return;
    if (pour(s, to, p, n, false) == 0)
        wake(s, to);
    else if (from == H2_GUEST)
        refuse(s, 400, "bad_request", "the request is too long with its secrets in place");
    else
        h2_stream_bad_response(s, "is too long with placeholders in it");
}

void h2_stream_end(struct h2_stream *s, enum h2_side from)
{
    enum h2_side to = !from;
    s->ended[from] = true;
    if (s->refused || s->held)
        return;
    s->h->broken |= s->pipe[to].swap.n > 0 && pour(s, to, "", 0, true) < 0;
    s->pipe[to].eof = true;
    wake(s, to);
}

void h2_stream_trailers(struct h2_stream *s, enum h2_side from, struct h2_head *x)
{
    struct h2_pipe *pipe = &s->pipe[!from];
    if (s->refused)
        return;
    if (x->too_long || buf_len(&x->text) > HTTP_TRAILERS_MAX) {
        if (from == H2_GUEST)
            bad_request(s, "has too long trailers");
        else
            h2_stream_bad_response(s, "has too long trailers");
        return;
    }
    if (from == H2_GUEST) {
        s->search.n = 0;
        if (!may_pass(s, NULL, (const char *)buf_head(&x->text), buf_len(&x->text), "trailers"))
            return;
    }
    head_free(pipe->trailers);
    pipe->trailers = head_steal(x);
    s->h->broken |= !pipe->trailers;
}

/* --- ends ------------------------------------------------------------------------------------ */

void h2_stream_answered(struct h2_stream *s)
{
    s->sent = true;
    if (!s->ended[H2_GUEST] && !s->open[H2_SERVER]) /* the rest of the request is not wanted */
        stream_reset(s, H2_GUEST, NGHTTP2_NO_ERROR);
}

void h2_stream_closed(struct h2_stream *s, enum h2_side side, uint32_t code)
{
    enum h2_side other = !side;
    bool whole = s->pipe[H2_GUEST].eof; /* the response */
    s->open[side] = false;
    if (side == H2_SERVER)
        h2_stream_dequeued(s);
    drop_data(s, side);
    if (side == H2_GUEST && s->held) {
        stop_waiting(s);
        drop_data(s, H2_SERVER);
    }
    if (!s->open[other]) {
        h2_stream_free(s);
        return;
    }
    if (side == H2_GUEST && code != NGHTTP2_NO_ERROR)
        stream_reset(s, H2_SERVER, code);
    if (side == H2_SERVER && !whole && !s->refused)
        stream_reset(s, H2_GUEST, code ? code : NGHTTP2_INTERNAL_ERROR);
    if (side == H2_SERVER && s->sent)
        h2_stream_answered(s);
}
