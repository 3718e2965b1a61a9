#include "intercept/h2_stream.h"

#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIFLES_BURST = 10000, /* pings and the like: a busy client sends some for each round trip */
    TRIFLES_RATE = 1000,   /* in a second */
    RESETS_BURST = 300,
    RESETS_RATE = 30,
    RECORD = 9, /* bytes before a frame */
};

/* --- memory ---------------------------------------------------------------------------------- */

/* Memory used by nghttp2 may have contained a value. */
static void mem_free(void *p, void *arg)
{
    if (p)
        explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

static void *mem_alloc(size_t n, void *arg)
{
    return malloc(n);
}

static void *mem_zeroes(size_t n, size_t size, void *arg)
{
    return calloc(n, size);
}

static void *mem_resize(void *p, size_t n, void *arg)
{
    void *to = malloc(n);
    if (!to)
        return NULL;
    if (p)
        memcpy(to, p, MIN(n, malloc_usable_size(p)));
    mem_free(p, arg);
    return to;
}

static nghttp2_mem memory = {
    .malloc = mem_alloc, .free = mem_free, .calloc = mem_zeroes, .realloc = mem_resize};

/* --- what a peer says ------------------------------------------------------------------------ */

static enum h2_side side_of(const struct h2 *h, const nghttp2_session *session)
{
    return session == h->session[H2_GUEST] ? H2_GUEST : H2_SERVER;
}

static struct h2_stream *stream_of(nghttp2_session *session, int32_t id)
{
    return id > 0 ? nghttp2_session_get_stream_user_data(session, id) : NULL;
}

static void send_away(struct h2 *h, enum h2_side side)
{
    (void)nghttp2_session_terminate_session(h->session[side], NGHTTP2_ENHANCE_YOUR_CALM);
    h->broken = true;
}

/* Frames that cost us more than their sender. (Resets and continuations are counted by nghttp2.) */
static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
    struct h2 *h = arg;
    bool trifle =
        hd->type == NGHTTP2_PING || hd->type == NGHTTP2_SETTINGS || hd->type == NGHTTP2_PRIORITY ||
        hd->type > NGHTTP2_CONTINUATION ||
        (hd->type == NGHTTP2_DATA && hd->length == 0 && !(hd->flags & NGHTTP2_FLAG_END_STREAM));
    enum h2_side from = side_of(h, session);
    if (!trifle || h->broken)
        return 0;
    if (bucket_level(&h->trifles[from], now_ns()) == 0) {
        h->env.report(h->env.arg, LINK_REFUSED,
                      from == H2_GUEST ? "the client floods its HTTP/2 connection"
                                       : "the server floods its HTTP/2 connection");
        send_away(h, from);
    }
    bucket_take(&h->trifles[from], 1);
    return 0;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2 *h = arg;
    enum h2_side from = side_of(h, session);
    h2_head_reset(&h->head[from]);
    if (from == H2_SERVER || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct h2_stream *s = h2_stream_new(h, frame->hd.stream_id);
    if (!s)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    (void)nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, s);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *arg)
{
    struct h2 *h = arg;
    struct h2_head *x = &h->head[side_of(h, session)];
    size_t at = buf_len(&x->text);
    if (x->too_long || x->n == H2_FIELDS_MAX || buf_append(&x->text, name, name_len) < 0 ||
        buf_append(&x->text, value, value_len) < 0) {
        x->too_long = true;
        return 0;
    }
    x->field[x->n].name = at;
    x->field[x->n].name_len = name_len;
    x->field[x->n].value = at + name_len;
    x->field[x->n].value_len = value_len;
    x->field[x->n++].flags = flags & NGHTTP2_NV_FLAG_NO_INDEX;
    return 0;
}

/* nghttp2 would drop it and continue. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame,
                             const uint8_t *name, size_t name_len, const uint8_t *value,
                             size_t value_len, uint8_t flags, void *arg)
{
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static void take_headers(struct h2 *h, struct h2_stream *s, enum h2_side from)
{
    struct h2_head *x = &h->head[from];
    if (from == H2_GUEST && !s->requested) {
        s->requested = true;
        h2_stream_request(s, x);
    } else if (from == H2_SERVER && !s->answered && !s->refused) {
        h2_stream_response(s, x);
    } else {
        h2_stream_trailers(s, from, x);
    }
    h2_head_reset(x);
}

/* Accepts no more requests, and finishes those under way. */
static void say_goodbye(struct h2 *h)
{
    nghttp2_session *guest = h->session[H2_GUEST];
    h->server_gone = true;
    (void)nghttp2_submit_goaway(guest, NGHTTP2_FLAG_NONE,
                                nghttp2_session_get_last_proc_stream_id(guest), NGHTTP2_NO_ERROR,
                                NULL, 0);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2 *h = arg;
    enum h2_side from = side_of(h, session);
    if (frame->hd.type == NGHTTP2_GOAWAY && from == H2_SERVER && !h->server_gone)
        say_goodbye(h);
    struct h2_stream *s = stream_of(session, frame->hd.stream_id);
    if (!s || (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA))
        return 0;
    s->ended[from] = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame->hd.type == NGHTTP2_HEADERS)
        take_headers(h, s, from);
    if (s->ended[from])
        h2_stream_end(s, from);
    return 0;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error,
                            void *arg)
{
    struct h2 *h = arg;
    enum h2_side from = side_of(h, session);
    struct h2_stream *s = stream_of(session, frame->hd.stream_id);
    if (s && from == H2_SERVER)
        h2_stream_bad_response(s, "is malformed");
    else if (s)
        h->env.report(h->env.arg, LINK_REFUSED, "the request is malformed");
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *arg)
{
    struct h2_stream *s = stream_of(session, id);
    if (s)
        h2_stream_data(s, side_of(arg, session), (const char *)p, n);
    else
        (void)nghttp2_session_consume(session, id, n);
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    struct h2_stream *s = stream_of(session, id);
    if (s)
        h2_stream_closed(s, side_of(arg, session), code);
    return 0;
}

/* --- what is sent ---------------------------------------------------------------------------- */

/* Writes the rest of a body's frame straight to its destination. */
static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *record,
                        size_t n, nghttp2_data_source *source, void *arg)
{
    struct h2 *h = arg;
    enum h2_side to = side_of(h, session);
    struct h2_stream *s = stream_of(session, frame->hd.stream_id);
    if (!s || buf_len(&s->pipe[to].data) < n)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (buf_len(h->out) >= h->high)
        return NGHTTP2_ERR_WOULDBLOCK;
    if ((to == H2_SERVER && h->secrets && buf_reserve_wiping(h->out, n + RECORD) < 0) ||
        buf_append(h->out, record, RECORD) < 0 ||
        buf_append(h->out, buf_head(&s->pipe[to].data), n) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    h2_stream_sent(s, to, n);
    return 0;
}

static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2 *h = arg;
    struct h2_stream *s = stream_of(session, frame->hd.stream_id);
    bool last = (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
                frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    enum h2_side to = side_of(h, session);
    if (s && to == H2_SERVER && frame->hd.type == NGHTTP2_HEADERS)
        h2_stream_dequeued(s);
    if (s && to == H2_GUEST && last)
        h2_stream_answered(s);
    return 0;
}

/* A request that the server cannot take: the client may try again on another connection. */
static int on_frame_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int error,
                             void *arg)
{
    struct h2 *h = arg;
    if (side_of(h, session) != H2_SERVER || frame->hd.type != NGHTTP2_HEADERS ||
        frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    for (struct node *n = h->streams.next; n != &h->streams; n = n->next) {
        struct h2_stream *s = CONTAINER_OF(n, struct h2_stream, node);
        if (s->id[H2_SERVER] == frame->hd.stream_id && s->open[H2_SERVER]) {
            (void)nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, NULL);
            h2_stream_closed(s, H2_SERVER, NGHTTP2_REFUSED_STREAM);
            break;
        }
    }
    return 0;
}

bool h2_give(struct h2 *h, enum h2_side to, struct buf *out, size_t high, bool *secret)
{
    const uint8_t *p;
    size_t before = buf_len(out);
    ssize_t n = 0;
    if (!h->session[to])
        return false;
    h->out = out;
    h->high = high;
    while (buf_len(out) < high && (n = nghttp2_session_mem_send(h->session[to], &p)) > 0) {
        bool values = to == H2_SERVER && h->secrets;
        *secret |= values;
        if ((values && buf_reserve_wiping(out, (size_t)n) < 0) ||
            buf_append(out, p, (size_t)n) < 0) {
            n = -1;
            break;
        }
        if (values) /* nghttp2 is done with that, and keeps its buffer for the next frame */
            explicit_bzero((void *)(uintptr_t)p, (size_t)n);
    }
    h->out = NULL;
    h->broken |= n < 0;
    *secret |= to == H2_SERVER && h->secrets;
    return buf_len(out) > before;
}

/* --- life ------------------------------------------------------------------------------------ */

static nghttp2_session_callbacks *make_callbacks(void)
{
    nghttp2_session_callbacks *c = NULL;
    if (nghttp2_session_callbacks_new(&c) != 0)
        return NULL;
    nghttp2_session_callbacks_set_on_begin_frame_callback(c, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(c, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(c, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(c, on_invalid_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(c, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(c, on_invalid_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(c, on_close);
    nghttp2_session_callbacks_set_send_data_callback(c, on_send_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(c, on_frame_sent);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(c, on_frame_not_sent);
    return c;
}

static nghttp2_option *make_options(void)
{
    nghttp2_option *o = NULL;
    if (nghttp2_option_new(&o) != 0)
        return NULL;
    nghttp2_option_set_no_auto_window_update(o, 1);
    nghttp2_option_set_no_closed_streams(o, 1);
    nghttp2_option_set_max_send_header_block_length(o, SUBST_HEAD_MAX);
    nghttp2_option_set_stream_reset_rate_limit(o, RESETS_BURST, RESETS_RATE);
    return o;
}

static bool introduce(nghttp2_session *s)
{
    static const nghttp2_settings_entry said[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_WINDOW / 2},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX},
    };
    return nghttp2_submit_settings(s, NGHTTP2_FLAG_NONE, said, ARRAY_LEN(said)) == 0 &&
           nghttp2_session_set_local_window_size(s, NGHTTP2_FLAG_NONE, 0, H2_WINDOW) == 0;
}

int h2_new(struct h2 **ret, const struct h2_env *env)
{
    struct h2 *h = calloc(1, sizeof(*h));
    nghttp2_session_callbacks *c = make_callbacks();
    nghttp2_option *o = make_options();
    bool ok = h && c && o;
    if (h) {
        h->env = *env;
        node_init(&h->streams);
        h2_head_reset(&h->head[H2_GUEST]);
        h2_head_reset(&h->head[H2_SERVER]);
        for (unsigned i = 0; i < 2; i++)
            bucket_init(&h->trifles[i], TRIFLES_RATE, 1000000000, TRIFLES_BURST, 0, now_ns());
    }
    ok = ok && nghttp2_session_server_new3(&h->session[H2_GUEST], c, h, o, &memory) == 0 &&
         introduce(h->session[H2_GUEST]);
    if (ok && !env->trouble[0])
        ok = nghttp2_session_client_new3(&h->session[H2_SERVER], c, h, o, &memory) == 0 &&
             introduce(h->session[H2_SERVER]);
    nghttp2_session_callbacks_del(c);
    nghttp2_option_del(o);
    if (!ok) {
        h2_free(h);
        return -ENOMEM;
    }
    *ret = h;
    return 0;
}

void h2_free(struct h2 *h)
{
    if (!h)
        return;
    nghttp2_session_del(h->session[H2_GUEST]);
    nghttp2_session_del(h->session[H2_SERVER]);
    while (node_linked(&h->streams))
        h2_stream_free(CONTAINER_OF(h->streams.next, struct h2_stream, node));
    h2_head_reset(&h->head[H2_GUEST]);
    h2_head_reset(&h->head[H2_SERVER]);
    free(h);
}

/* A request or a reset is also queued for the other side. */
static bool queues_too_much(const struct h2 *h)
{
    for (unsigned i = 0; i < 2; i++)
        if (h->session[i] && nghttp2_session_get_outbound_queue_size(h->session[i]) > H2_QUEUE_MAX)
            return true;
    return false;
}

int h2_take(struct h2 *h, enum h2_side from, const void *p, size_t n)
{
    nghttp2_session *s = h->session[from];
    if (h->broken)
        return -EPROTO;
    if (!s) /* the server has said all that matters, but the client may still have to read it */
        return 0;
    ssize_t k = nghttp2_session_mem_recv(s, p, n);
    if (k < 0)
        h->broken = true;
    else if (queues_too_much(h))
        send_away(h, from);
    if (from == H2_SERVER && !nghttp2_session_want_read(s))
        h2_lost_server(h);
    return h->broken ? -EPROTO : 0;
}

void h2_lost_server(struct h2 *h)
{
    if (!h->server_gone)
        say_goodbye(h);
    for (struct node *n = h->streams.next, *next; n != &h->streams; n = next) {
        struct h2_stream *s = CONTAINER_OF(n, struct h2_stream, node);
        next = n->next;
        if (s->open[H2_SERVER])
            h2_stream_closed(s, H2_SERVER, NGHTTP2_INTERNAL_ERROR); /* frees no other */
    }
    nghttp2_session_del(h->session[H2_SERVER]); /* it knows streams that are gone */
    h->session[H2_SERVER] = NULL;
}

void h2_resume(struct h2 *h)
{
    for (struct node *n = h->streams.next; n != &h->streams; n = n->next)
        h2_stream_resume(CONTAINER_OF(n, struct h2_stream, node));
}

bool h2_waits(const struct h2 *h)
{
    return h->n_waiting > 0;
}

bool h2_idle(const struct h2 *h)
{
    return !node_linked(&h->streams);
}

bool h2_over(const struct h2 *h)
{
    nghttp2_session *guest = h->session[H2_GUEST];
    return h->broken || (!nghttp2_session_want_read(guest) && !nghttp2_session_want_write(guest));
}
