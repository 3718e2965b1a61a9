/* HTTP/2 through the interceptor, between a client and a server that nghttp2 plays: what arrives on the
 * other side, what is refused, and what becomes of those who send too much. */
#include <stdint.h>

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "intercept/h2.h"
#include "unit.h"
#include "util/cleanup.h"

#define HOLDER "msb_aaaaaaaaaaaaaaaaaaaa"
#define MINTED "msb_bbbbbbbbbbbbbbbbbbbb"
#define VALUE "the-value-of-it"

/* --- peers ----------------------------------------------------------------------------------- */

struct peer {
    nghttp2_session *s;
    struct buf
        log; /* "1 name: value\n", "1 end\n", "1 reset 8\n", "goaway 11\n"; ! after what is not indexed */
    struct buf data;  /* bodies */
    size_t to_send;   /* of its own body, of which there is so much */
    const char *text; /* ... or this */
    bool trailers, refuses_to_read;
};

struct world {
    struct h2 *h;
    struct peer client, server;
    struct subst_secret secret[2];
    struct subst subst;
    struct buf reports;
    int wanted;
};

static ssize_t on_read(nghttp2_session *s, int32_t id, uint8_t *to, size_t most, uint32_t *flags,
                       nghttp2_data_source *source, void *arg)
{
    struct peer *p = arg;
    nghttp2_nv t = {(uint8_t *)(uintptr_t) "x-last", (uint8_t *)(uintptr_t) "yes", 6, 3, 0};
    size_t n = MIN(most, p->to_send);
    if (p->text)
        memcpy(to, p->text + strlen(p->text) - p->to_send, n);
    else
        memset(to, 'x', n);
    p->to_send -= n;
    if (p->to_send == 0)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (p->to_send == 0 && p->trailers) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        assert_int_equal(nghttp2_submit_trailer(s, id, &t, 1), 0);
    }
    return (ssize_t)n;
}

static const nghttp2_data_provider provider = {.read_callback = on_read};

static int on_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t n,
                     const uint8_t *value, size_t m, uint8_t flags, void *arg)
{
    struct peer *p = arg;
    return buf_printf(&p->log, "%d %.*s: %.*s%s\n", f->hd.stream_id, (int)n, name, (int)m, value,
                      flags & NGHTTP2_NV_FLAG_NO_INDEX ? "!" : "");
}

static int on_frame(nghttp2_session *s, const nghttp2_frame *f, void *arg)
{
    struct peer *p = arg;
    if (f->hd.type == NGHTTP2_GOAWAY)
        return buf_printf(&p->log, "goaway %u\n", f->goaway.error_code);
    if ((f->hd.type == NGHTTP2_DATA || f->hd.type == NGHTTP2_HEADERS) &&
        f->hd.flags & NGHTTP2_FLAG_END_STREAM)
        return buf_printf(&p->log, "%d end\n", f->hd.stream_id);
    return 0;
}

static int on_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *b, size_t n,
                   void *arg)
{
    struct peer *p = arg;
    if (!p->refuses_to_read)
        assert_int_equal(nghttp2_session_consume(s, id, n), 0);
    return buf_append(&p->data, b, n);
}

static int on_close(nghttp2_session *s, int32_t id, uint32_t code, void *arg)
{
    struct peer *p = arg;
    return code ? buf_printf(&p->log, "%d reset %u\n", id, code) : 0;
}

static void peer_open(struct peer *p, bool server)
{
    nghttp2_session_callbacks *c;
    nghttp2_option *o;
    buf_init(&p->log, 1 << 24);
    buf_init(&p->data, 1 << 24);
    assert_int_equal(nghttp2_session_callbacks_new(&c), 0);
    assert_int_equal(nghttp2_option_new(&o), 0);
    nghttp2_option_set_no_auto_window_update(o, 1);
    nghttp2_option_set_no_http_messaging(o, 1); /* it may lie */
    nghttp2_session_callbacks_set_on_header_callback(c, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(c, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(c, on_close);
    assert_int_equal(server ? nghttp2_session_server_new2(&p->s, c, p, o)
                            : nghttp2_session_client_new2(&p->s, c, p, o),
                     0);
    nghttp2_session_callbacks_del(c);
    nghttp2_option_del(o);
    assert_int_equal(nghttp2_submit_settings(p->s, 0, NULL, 0), 0);
}

static const char *said(struct peer *p)
{
    assert_int_equal(buf_append(&p->log, "", 1), 0);
    p->log.tail--;
    return (const char *)buf_head(&p->log);
}

static bool has(struct peer *p, const char *text)
{
    return strstr(said(p), text) != NULL;
}

static bool move(struct world *w, struct peer *p, enum h2_side side)
{
    const uint8_t *b;
    struct buf out = {.limit = 1 << 20};
    bool secret = false, any = false;
    ssize_t n;
    while ((n = nghttp2_session_mem_send(p->s, &b)) > 0) {
        any = true;
        if (h2_take(w->h, side, b, (size_t)n) < 0)
            break;
    }
    any |= h2_give(w->h, side, &out, 128 * 1024, &secret);
    if (buf_len(&out) > 0)
        (void)nghttp2_session_mem_recv(p->s, buf_head(&out), buf_len(&out));
    buf_free(&out);
    return any;
}

/* Until neither side has more output. */
static void pump(struct world *w)
{
    bool any = true;
    while (any) {
        any = move(w, &w->client, H2_GUEST);
        any |= move(w, &w->server, H2_SERVER);
    }
}

/* --- the world ------------------------------------------------------------------------------- */

static const struct subst *secrets(void *arg)
{
    return &((struct world *)arg)->subst;
}

static void report(void *arg, enum link_report_kind kind, const char *text)
{
    struct world *w = arg;
    (void)buf_printf(&w->reports, "%u %s\n", kind, text);
}

static int want(void *arg, const char *secret, const char **why)
{
    struct world *w = arg;
    assert_string_equal(secret, "MINTED");
    *why = "it failed";
    w->wanted++;
    return w->wanted > 9 ? -EIO : -EAGAIN;
}

static void bind_secret(struct subst_secret *x, const char *name, const char *holder,
                        const char *value)
{
    *x = (struct subst_secret){.value = value,
                               .value_len = value ? strlen(value) : 0,
                               .holder_len = strlen(holder),
                               .host = {{.name = "x.org"}},
                               .n_hosts = 1,
                               .place = {{.where = SUBST_QUERY, .name = "k"}},
                               .n_places = 1};
    memcpy(x->name, name, strlen(name) + 1);
    memcpy(x->holder, holder, strlen(holder) + 1);
}

static void open_world(struct world *w, const char *trouble)
{
    const struct h2_env env = {.host = "x.org",
                               .port = 443,
                               .trouble = trouble,
                               .arg = w,
                               .secrets = secrets,
                               .report = report,
                               .want = want};
    memset(w, 0, sizeof(*w));
    buf_init(&w->reports, 1 << 20);
    bind_secret(&w->secret[0], "KEY", HOLDER, VALUE);
    bind_secret(&w->secret[1], "MINTED", MINTED, NULL);
    w->subst = (struct subst){w->secret, 2};
    assert_int_equal(h2_new(&w->h, &env), 0);
    peer_open(&w->client, false);
    peer_open(&w->server, true);
}

static void close_world(struct world *w)
{
    h2_free(w->h);
    nghttp2_session_del(w->client.s);
    nghttp2_session_del(w->server.s);
    buf_free(&w->client.log);
    buf_free(&w->client.data);
    buf_free(&w->server.log);
    buf_free(&w->server.data);
    buf_free(&w->reports);
}

static nghttp2_nv nv(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), 0};
}

static int32_t ask(struct world *w, const char *method, const char *authority, const char *path,
                   const char *name, const char *value, bool body)
{
    nghttp2_nv f[] = {nv(":method", method), nv(":scheme", "https"), nv(":authority", authority),
                      nv(":path", path), nv(name, value)};
    if (strcmp(name, "x-sensitive") == 0)
        f[4].flags = NGHTTP2_NV_FLAG_NO_INDEX;
    int32_t id =
        nghttp2_submit_request(w->client.s, NULL, f, ARRAY_LEN(f), body ? &provider : NULL, NULL);
    assert_true(id > 0);
    pump(w);
    return id;
}

static void reply(struct world *w, int32_t id, const char *name, const char *value, bool body)
{
    nghttp2_nv f[] = {nv(":status", "200"), nv(name, value)};
    assert_int_equal(
        nghttp2_submit_response(w->server.s, id, f, ARRAY_LEN(f), body ? &provider : NULL), 0);
    pump(w);
}

/* --- use ------------------------------------------------------------------------------------- */

static void values_reach_the_server_and_are_not_indexed(void **state)
{
    struct world w;
    open_world(&w, "");
    ask(&w, "GET", "x.org", "/a?k=" HOLDER "&b=1", "authorization", "Bearer " HOLDER, false);
    assert_true(has(&w.server, "1 :authority: x.org\n") && has(&w.server, "1 :method: GET\n"));
    assert_true(has(&w.server, "1 :path: /a?k=" VALUE "&b=1!\n"));
    assert_true(has(&w.server, "1 authorization: Bearer " VALUE "!\n") &&
                has(&w.server, "1 end\n"));
    w.server.to_send = 5;
    w.server.trailers = true;
    reply(&w, 1, "x-a", "b", true);
    assert_true(has(&w.client, "1 :status: 200\n1 x-a: b\n1 x-last: yes\n1 end\n"));
    assert_int_equal(buf_len(&w.client.data), 5);
    ask(&w, "GET", "x.org:443", "/", "x-other", "plain", false);
    assert_true(has(&w.server, "3 x-other: plain\n") && !has(&w.client, VALUE));
    ask(&w, "GET", "x.org", "/", "x-sensitive", "s", false);
    assert_true(has(&w.server, "5 x-sensitive: s!\n"));
    assert_true(h2_idle(w.h) == false && !h2_over(w.h));
    close_world(&w);
}

static void bodies_stream_within_their_windows(void **state)
{
    struct world w;
    open_world(&w, "");
    w.client.refuses_to_read = w.server.refuses_to_read = true;
    w.client.to_send = w.server.to_send = 3000000;
    w.client.trailers = true;
    ask(&w, "POST", "x.org", "/", "content-length", "3000000", true);
    reply(&w, 1, "x-a", "b", true);
    /* Each has what its own window takes, and the rest is in ours. */
    assert_int_equal(buf_len(&w.server.data), 65535);
    assert_true(w.client.to_send >= 3000000 - 65535 - H2_WINDOW / 2 - 16384);
    assert_int_equal(buf_len(&w.client.data), 65535);
    assert_true(w.server.to_send >= 3000000 - 65535 - H2_WINDOW / 2 - 16384);
    w.client.refuses_to_read = w.server.refuses_to_read = false;
    assert_int_equal(nghttp2_session_consume(w.client.s, 1, 65535), 0);
    assert_int_equal(nghttp2_session_consume(w.server.s, 1, 65535), 0);
    pump(&w);
    assert_int_equal(buf_len(&w.server.data), 3000000);
    assert_int_equal(buf_len(&w.client.data), 3000000);
    assert_true(has(&w.server, "1 x-last: yes\n1 end\n") && has(&w.client, "1 end\n"));
    assert_true(h2_idle(w.h));
    close_world(&w);
}

static void values_are_put_into_bodies_and_taken_out(void **state)
{
    struct world w;
    open_world(&w, "");
    w.secret[0].place[0].where = SUBST_BODY;
    w.secret[0].place[1].where = SUBST_RESPONSE;
    w.secret[0].n_places = 2;
    w.client.text = "a " HOLDER " b";
    w.client.to_send = strlen(w.client.text);
    w.server.text = "c " VALUE;
    w.server.to_send = strlen(w.server.text);
    ask(&w, "POST", "x.org", "/", "accept-encoding", "gzip", true);
    assert_int_equal(buf_len(&w.server.data), strlen("a " VALUE " b"));
    assert_memory_equal(buf_head(&w.server.data), "a " VALUE " b", buf_len(&w.server.data));
    assert_false(has(&w.server, "accept-encoding"));
    reply(&w, 1, "x-echo", VALUE, true);
    assert_int_equal(buf_len(&w.client.data), strlen("c " HOLDER));
    assert_memory_equal(buf_head(&w.client.data), "c " HOLDER, buf_len(&w.client.data));
    assert_true(has(&w.client, "1 x-echo: " HOLDER "\n"));
    close_world(&w);
}

/* While a body arrives, other secrets move to the place of those that may be in it. */
static void secrets_change_during_a_body(void **state)
{
    enum { LONG = H2_WINDOW };
    static const char *const last[] = {HOLDER, MINTED};
    static char text[LONG + sizeof(HOLDER)];
    for (size_t i = 0; i < ARRAY_LEN(last); i++) {
        struct world w;
        open_world(&w, "");
        w.secret[0].place[0].where = SUBST_BODY;
        memset(text, 'x', LONG);
        memcpy(text + LONG, last[i], sizeof(HOLDER));
        w.client.text = text;
        w.client.to_send = strlen(text);
        w.server.refuses_to_read = true;
        ask(&w, "POST", "x.org", "/", "a", "b", true);
        assert_true(w.client.to_send > sizeof(HOLDER));
        struct subst_secret moved = w.secret[0];
        w.secret[0] = w.secret[1];
        w.secret[1] = moved;
        w.server.refuses_to_read = false;
        assert_int_equal(nghttp2_session_consume(w.server.s, 1, buf_len(&w.server.data)), 0);
        pump(&w);
        assert_int_equal(has(&w.server, "1 end\n"), i == 0);
        assert_int_equal(buf_len(&w.reports) > 0, i == 1);
        assert_int_equal(has(&w.client, "1 msb-blocked: secret MINTED may not be in the body\n"),
                         i == 1);
        if (i == 0)
            assert_memory_equal(buf_head(&w.server.data) + LONG, VALUE, strlen(VALUE));
        close_world(&w);
    }
}

static void a_request_waits_for_its_value(void **state)
{
    struct world w;
    open_world(&w, "");
    w.client.to_send = 100000;
    ask(&w, "POST", "x.org", "/", "x-api-key", MINTED, true);
    assert_true(h2_waits(w.h) && w.wanted == 1 && !has(&w.server, ":path"));
    h2_resume(w.h);
    assert_true(h2_waits(w.h) && w.wanted == 2);
    bind_secret(&w.secret[1], "MINTED", MINTED, "minted");
    h2_resume(w.h);
    pump(&w);
    assert_true(!h2_waits(w.h) && has(&w.server, "1 x-api-key: minted!\n"));
    assert_int_equal(buf_len(&w.server.data), 100000);
    assert_true(has(&w.server, "1 end\n"));
    w.secret[1].value = NULL;
    ask(&w, "GET", "x.org", "/", "x-api-key", MINTED, false); /* the client goes away */
    assert_int_equal(nghttp2_submit_rst_stream(w.client.s, 0, 3, NGHTTP2_CANCEL), 0);
    pump(&w);
    assert_false(h2_waits(w.h));
    w.wanted = 100;
    ask(&w, "GET", "x.org", "/", "x-api-key", MINTED, false);
    assert_true(has(&w.client, "5 :status: 502\n") && has(&w.client, "5 msb-blocked: it failed\n"));
    close_world(&w);
}

/* --- refusals -------------------------------------------------------------------------------- */

static void placeholders_elsewhere_are_not_sent(void **state)
{
    struct world w;
    open_world(&w, "");
    ask(&w, "GET", "x.org", "/", "user-agent", HOLDER, false);
    ask(&w, "GET", "x.org", "/" HOLDER, "a", "b", false);
    ask(&w, "GET", "x.org", "/", HOLDER, "b", false);
    assert_true(has(&w.client, "1 :status: 403\n") && has(&w.client, "3 :status: 403\n"));
    assert_true(has(&w.client, "5 :status: 403\n") && !has(&w.server, ":path"));
    assert_true(has(&w.client, "1 msb-blocked: secret KEY may not be in header user-agent\n"));
    assert_non_null(memmem(buf_head(&w.client.data), buf_len(&w.client.data),
                           "{\"error\":\"secret_blocked\"", 24));
    w.client.text = "in a body: " HOLDER;
    w.client.to_send = strlen(w.client.text);
    ask(&w, "POST", "x.org", "/", "a", "b", true);
    assert_true(has(&w.client, "7 msb-blocked: secret KEY may not be in the body\n"));
    assert_true(!has(&w.server, "end") && buf_len(&w.server.data) == 0);
    ask(&w, "HEAD", "x.org", "/", "user-agent", HOLDER, false);
    assert_true(has(&w.client, "9 :status: 403\n") && has(&w.client, "9 end\n"));
    ask(&w, "GET", "x.org", "/", "x-api-key", HOLDER, false); /* the connection goes on */
    assert_true(has(&w.server, "x-api-key: " VALUE "!\n"));
    reply(&w, (int32_t)strtol(said(&w.server), NULL, 10), "a", "b", false);
    assert_true(h2_idle(w.h));
    close_world(&w);
}

static void placeholders_in_trailers_are_not_sent(void **state)
{
    struct world w;
    nghttp2_nv t = nv("x-api-key", HOLDER);
    open_world(&w, "");
    nghttp2_nv f[] = {nv(":method", "POST"), nv(":scheme", "https"), nv(":authority", "x.org"),
                      nv(":path", "/")};
    assert_int_equal(nghttp2_submit_headers(w.client.s, 0, -1, NULL, f, ARRAY_LEN(f), NULL), 1);
    pump(&w);
    assert_int_equal(nghttp2_submit_trailer(w.client.s, 1, &t, 1), 0);
    pump(&w);
    assert_true(has(&w.client, "1 msb-blocked: secret KEY may not be in trailers\n"));
    assert_true(has(&w.server, "1 reset 8\n") && !has(&w.server, "1 end"));
    close_world(&w);
}

static void requests_that_make_no_sense_are_refused(void **state)
{
    struct world w;
    open_world(&w, "");
    ask(&w, "GET", "y.org", "/", "x-api-key", HOLDER, false);
    ask(&w, "GET", "x.org", "/", "host", "y.org", false);
    ask(&w, "GET", "x.org", "//x y", "a", "b", false);
    ask(&w, "GET", "x.org", "x", "a", "b", false);
    ask(&w, "GET", "x.org", "/", "transfer-encoding", "chunked", false);
    ask(&w, "GET", "x.org", "/", "a b", "c", false);
    ask(&w, "GET", "x.org", "/", "a", "b\r\nc: d", false);
    ask(&w, "GET", "x.org", "/", ":status", "200", false);
    ask(&w, "CONNECT", "x.org", "/", "a", "b", false);
    ask(&w, "GET", "", "/", "a", "b", false);
    assert_true(has(&w.client, "1 :status: 421\n") && has(&w.client, "3 :status: 400\n"));
    for (int id = 5; id <= 19; id += 2) {
        char refused[64], reset[64];
        (void)snprintf(refused, sizeof(refused), "%d :status: 400\n", id);
        (void)snprintf(reset, sizeof(reset), "%d reset ", id);
        if (!has(&w.client, refused) && !has(&w.client, reset))
            fail_msg("request %d: %s", id, said(&w.client));
    }
    assert_false(has(&w.server, ":path"));
    ask(&w, "GET", "x.org", "/fine", "host", "X.ORG", false);
    assert_true(has(&w.server, ":path: /fine\n") && !has(&w.server, "host:"));
    close_world(&w);
}

static void heads_have_a_limit(void **state)
{
    struct world w;
    char *large = malloc(60001);
    memset(large, 'a', 60000);
    large[60000] = '\0';
    open_world(&w, "");
    nghttp2_nv f[] = {nv(":method", "GET"), nv(":scheme", "https"), nv(":authority", "x.org"),
                      nv(":path", "/"),     nv("a", large),         nv("b", large)};
    assert_int_equal(nghttp2_submit_request(w.client.s, NULL, f, 5, NULL, NULL), 1);
    pump(&w);
    assert_true(has(&w.server, "1 :path: /\n"));
    assert_int_equal(nghttp2_submit_request(w.client.s, NULL, f, 6, NULL, NULL), 3);
    pump(&w);
    assert_true(has(&w.client, "3 :status: 400\n") || has(&w.client, "3 reset") ||
                has(&w.client, "goaway"));
    assert_false(has(&w.server, "3 :path"));
    free(large);
    close_world(&w);
}

/* --- servers that fail ----------------------------------------------------------------------- */

static void servers_that_reset_hang_up_or_are_not_there(void **state)
{
    struct world w;
    open_world(&w, "");
    ask(&w, "GET", "x.org", "/", "a", "b", false);
    ask(&w, "GET", "x.org", "/", "a", "b", false);
    assert_int_equal(nghttp2_submit_rst_stream(w.server.s, 0, 1, NGHTTP2_REFUSED_STREAM), 0);
    pump(&w);
    assert_true(has(&w.client, "1 reset 7\n"));
    w.client.to_send = 2000000; /* an answer before the question is complete */
    w.server.refuses_to_read = true;
    ask(&w, "POST", "x.org", "/", "a", "b", true);
    reply(&w, 5, "a", "b", false);
    assert_int_equal(nghttp2_submit_rst_stream(w.server.s, 0, 5, NGHTTP2_NO_ERROR), 0);
    pump(&w);
    assert_true(has(&w.client, "5 :status: 200\n") && has(&w.client, "5 end\n"));
    assert_int_equal(nghttp2_submit_goaway(w.server.s, 0, 3, NGHTTP2_NO_ERROR, NULL, 0), 0);
    pump(&w);
    assert_true(has(&w.client, "goaway 0\n") && !h2_over(w.h));
    h2_lost_server(w.h);
    pump(&w);
    assert_true(has(&w.client, "3 reset 2\n") && h2_over(w.h));
    close_world(&w);
    open_world(&w, "it is not trusted");
    ask(&w, "GET", "x.org", "/", "x-api-key", HOLDER, false);
    assert_true(has(&w.client, "1 :status: 502\n") &&
                has(&w.client, "1 msb-blocked: it is not trusted\n"));
    close_world(&w);
}

/* What a server says after its GOAWAY does not end a response that the client is still reading. */
static void responses_are_delivered_after_goaway(void **state)
{
    enum { LONG = 200000 };
    static const uint8_t ping[] = "\0\0\x8\6\0\0\0\0\0abcdefgh";
    struct world w;
    open_world(&w, "");
    w.client.refuses_to_read = true;
    ask(&w, "GET", "x.org", "/", "a", "b", false);
    assert_int_equal(nghttp2_submit_shutdown_notice(w.server.s), 0);
    pump(&w);
    w.server.to_send = LONG;
    reply(&w, 1, "a", "b", true);
    assert_int_equal(nghttp2_submit_goaway(w.server.s, 0, 1, NGHTTP2_NO_ERROR, NULL, 0), 0);
    pump(&w);
    assert_true(w.server.to_send == 0 && buf_len(&w.client.data) < LONG);
    assert_int_equal(h2_take(w.h, H2_SERVER, ping, sizeof(ping) - 1), 0);
    assert_false(h2_over(w.h));
    w.client.refuses_to_read = false;
    assert_int_equal(nghttp2_session_consume(w.client.s, 1, buf_len(&w.client.data)), 0);
    pump(&w);
    assert_int_equal(buf_len(&w.client.data), LONG);
    assert_true(has(&w.client, "1 end\n") && h2_over(w.h));
    close_world(&w);
}

static void responses_that_make_no_sense_become_502(void **state)
{
    struct world w;
    open_world(&w, "");
    ask(&w, "GET", "x.org", "/", "a", "b", false);
    ask(&w, "GET", "x.org", "/", "a", "b", false);
    reply(&w, 1, "connection", "close", false);
    reply(&w, 3, "a", "b\r\nc: d", false);
    assert_true(has(&w.client, "1 :status: 502\n") && has(&w.client, "3 :status: 502\n"));
    close_world(&w);
}

/* --- floods ---------------------------------------------------------------------------------- */

static void floods_end_the_connection(void **state)
{
    static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    static const uint8_t ping[] = "\0\0\x8\6\0\0\0\0\0abcdefgh";
    static const uint8_t settings[] = "\0\0\0\4\0\0\0\0\0";
    static const uint8_t empty[] = "\0\0\0\0\0\0\0\0\1";
    static const uint8_t more[] = "\0\0\1\x9\0\0\0\0\1\x84";
    static const uint8_t post[] = "\0\0\xa\1\4\0\0\0\1\x83\x84\x87\x41\5x.org";
    static const uint8_t begun[] = "\0\0\1\1\0\0\0\0\1\x82";
    static const struct {
        const uint8_t *first, *again;
        size_t n_first, n_again;
    } floods[] = {{NULL, ping, 0, sizeof(ping) - 1},
                  {NULL, settings, 0, sizeof(settings) - 1},
                  {post, empty, sizeof(post) - 1, sizeof(empty) - 1},
                  {begun, more, sizeof(begun) - 1, sizeof(more) - 1}};
    for (size_t i = 0; i < ARRAY_LEN(floods); i++) {
        struct world w;
        struct buf out = {.limit = 1 << 24};
        bool secret = false;
        int r = 0;
        open_world(&w, "");
        assert_int_equal(h2_take(w.h, H2_GUEST, preface, sizeof(preface) - 1), 0);
        if (floods[i].first)
            assert_int_equal(h2_take(w.h, H2_GUEST, floods[i].first, floods[i].n_first), 0);
        size_t n = 0;
        for (; r == 0 && n < 100000 && !h2_over(w.h); n++) {
            r = h2_take(w.h, H2_GUEST, floods[i].again, floods[i].n_again);
            (void)h2_give(w.h, H2_GUEST, &out, 1 << 24, &secret); /* it does read */
        }
        if (n == 100000)
            fail_msg("flood %zu", i);
        buf_free(&out);
        close_world(&w);
    }
}

static void rapid_resets_end_the_connection(void **state)
{
    struct world w;
    open_world(&w, "");
    for (unsigned i = 0; i < 2000 && !has(&w.client, "goaway"); i++) {
        int32_t id = ask(&w, "GET", "x.org", "/", "a", "b", false);
        assert_int_equal(nghttp2_submit_rst_stream(w.client.s, 0, id, NGHTTP2_CANCEL), 0);
        pump(&w);
    }
    assert_true(has(&w.client, "goaway"));
    close_world(&w);
}

/* A client that asks and does not read: what waits for it is limited. */
static void answers_that_nobody_reads_are_limited(void **state)
{
    struct world w;
    const uint8_t *b;
    int r = 0;
    ssize_t n;
    open_world(&w, "");
    for (unsigned i = 0; r == 0 && i < 100000; i++) {
        assert_int_equal(nghttp2_submit_ping(w.client.s, 0, NULL), 0);
        while (r == 0 && (n = nghttp2_session_mem_send(w.client.s, &b)) > 0)
            r = h2_take(w.h, H2_GUEST, b, (size_t)n);
    }
    assert_int_equal(r, -EPROTO);
    close_world(&w);
}

/* A server that takes one request at a time, and is at it. */
static void open_busy_world(struct world *w)
{
    static const nghttp2_settings_entry one = {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1};
    open_world(w, "");
    assert_int_equal(nghttp2_submit_settings(w->server.s, 0, &one, 1), 0);
    pump(w);
    ask(w, "GET", "x.org", "/first", "a", "b", false);
    assert_true(has(&w->server, "1 :path: /first\n"));
}

/* A request that is refused because of its body, while its head waits for the server. */
static void ask_in_vain(struct world *w, const char *value)
{
    w->client.text = HOLDER;
    w->client.to_send = strlen(w->client.text);
    ask(w, "POST", "x.org", "/", "a", value, true);
}

static void heads_that_wait_for_the_server_are_limited(void **state)
{
    enum { LONG = 60000, MOST = H2_HEADS_MAX / LONG };
    static char large[LONG + 1];
    struct world w;
    char text[64];
    memset(large, 'a', LONG);
    open_busy_world(&w);
    for (int i = 0; i <= MOST; i++) {
        ask_in_vain(&w, large);
        (void)snprintf(text, sizeof(text), i < MOST ? "%d :status: 403\n" : "%d reset 7\n",
                       2 * i + 3);
        assert_true(has(&w.client, text));
    }
    assert_false(has(&w.client, "goaway"));
    reply(&w, 1, "a", "b", false); /* those that nobody waits for are dropped */
    ask(&w, "GET", "x.org", "/last", "a", large, false);
    assert_true(has(&w.server, ":path: /last\n"));
    reply(&w, 2 * MOST + 3, "a", "b", false);
    assert_true(h2_idle(w.h));
    close_world(&w);
}

static void requests_that_wait_for_the_server_are_limited(void **state)
{
    struct world w;
    unsigned n = 0;
    open_busy_world(&w);
    for (; n < 2 * H2_QUEUE_MAX && !has(&w.client, "goaway"); n++)
        ask_in_vain(&w, "b");
    assert_true(has(&w.client, "goaway 11\n") && n <= H2_QUEUE_MAX + 1);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_reach_the_server_and_are_not_indexed),
        cmocka_unit_test(bodies_stream_within_their_windows),
        cmocka_unit_test(values_are_put_into_bodies_and_taken_out),
        cmocka_unit_test(secrets_change_during_a_body),
        cmocka_unit_test(a_request_waits_for_its_value),
        cmocka_unit_test(placeholders_elsewhere_are_not_sent),
        cmocka_unit_test(placeholders_in_trailers_are_not_sent),
        cmocka_unit_test(requests_that_make_no_sense_are_refused),
        cmocka_unit_test(heads_have_a_limit),
        cmocka_unit_test(servers_that_reset_hang_up_or_are_not_there),
        cmocka_unit_test(responses_are_delivered_after_goaway),
        cmocka_unit_test(responses_that_make_no_sense_become_502),
        cmocka_unit_test(floods_end_the_connection),
        cmocka_unit_test(rapid_resets_end_the_connection),
        cmocka_unit_test(answers_that_nobody_reads_are_limited),
        cmocka_unit_test(heads_that_wait_for_the_server_are_limited),
        cmocka_unit_test(requests_that_wait_for_the_server_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
