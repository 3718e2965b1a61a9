/* Requests with placeholders in them: parsing, substitution, and what is refused. */
#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "intercept/config.h"
#include "intercept/subst.h"
#include "intercept/swap.h"
#include "spec/bound.h"
#include "unit.h"
#include "util/cleanup.h"

#define HOLDER "msb_aaaaaaaaaaaaaaaaaaaa"
#define OTHER "msb_bbbbbbbbbbbbbbbbbbbb"

static struct http_head head;

/* --- heads ----------------------------------------------------------------------------------- */

static int request(const char *text)
{
    const char *why = "";
    size_t seen = 0;
    ssize_t n = http_head_end(text, strlen(text), &seen);
    return n <= 0 ? (int)n : http_request(text, (size_t)n, &head, &why);
}

static int response(const char *text, bool bodiless)
{
    const char *why = "";
    size_t seen = 0;
    ssize_t n = http_head_end(text, strlen(text), &seen);
    return n <= 0 ? (int)n : http_response(text, (size_t)n, bodiless, &head, &why);
}

static void requests_are_read(void **state)
{
    assert_int_equal(
        request("POST /a?b HTTP/1.1\r\nHost: x.org\r\nContent-Length: 12\r\nX:  y \t\r\n\r\n"), 0);
    assert_true(http_text_is(head.method, "POST") && http_text_is(head.target, "/a?b"));
    assert_true(http_text_is(head.host, "x.org") && head.framing == HTTP_LENGTH);
    assert_int_equal(head.length, 12);
    assert_int_equal(head.n, 3);
    assert_true(http_text_is(head.field[2].value, "y") && !head.close);
    assert_int_equal(request("GET / HTTP/1.0\r\nHost: x\r\n\r\n"), 0);
    assert_true(head.close);
    assert_int_equal(request("OPTIONS * HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"),
                     0);
    assert_true(head.framing == HTTP_CHUNKED);
    assert_int_equal(
        request(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: a, Upgrade\r\nUpgrade: WebSocket\r\n\r\n"),
        0);
    assert_true(head.websocket);
}

static void ambiguous_requests_are_refused(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        "GET /\t HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
        "GET / HTTP/1.1\r\n X: b\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\001\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "A / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:chunked\r\nTransfer-Encoding:chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (request(bad[i]) != -EBADMSG)
            fail_msg("not refused: %s", bad[i]);
    assert_int_equal(request("GET / HTTP/1.1\r\nHost: a\r\n"), 0); /* not its end */
}

static void heads_have_limits(void **state)
{
    size_t seen = 0;
    char *text = malloc(HTTP_HEAD_MAX + 10);
    assert_non_null(text);
    memset(text, 'a', HTTP_HEAD_MAX + 10);
    assert_int_equal(http_head_end(text, HTTP_HEAD_MAX - 1, &seen), 0);
    assert_int_equal(http_head_end(text, HTTP_HEAD_MAX + 10, &seen), -E2BIG);
    free(text);
}

static void responses_are_read(void **state)
{
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false), 0);
    assert_true(head.status == 200 && head.framing == HTTP_LENGTH);
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true), 0);
    assert_true(head.framing == HTTP_EMPTY);
    assert_int_equal(response("HTTP/1.1 200\r\n\r\n", false), 0);
    assert_true(head.framing == HTTP_UNTIL_END && head.close);
    assert_int_equal(response("HTTP/1.1 304 x\r\nContent-Length: 3\r\n\r\n", false), 0);
    assert_true(head.framing == HTTP_EMPTY);
    static const char *const bad[] = {
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 700 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (response(bad[i], false) != -EBADMSG)
            fail_msg("not refused: %s", bad[i]);
}

/* --- bodies ---------------------------------------------------------------------------------- */

/* What is left of `text` when the body is done, or NULL if it is malformed; *data is its length. */
static const char *walk(const char *text, size_t *data)
{
    struct http_body b;
    head.framing = HTTP_CHUNKED;
    head.length = 0;
    http_body_begin(&b, &head);
    *data = 0;
    while (!http_body_done(&b)) {
        enum http_piece what;
        ssize_t n = http_body_step(&b, text, strlen(text), &what);
        if (n <= 0)
            return n < 0 ? NULL : "more";
        *data += what == HTTP_PIECE_DATA ? (size_t)n : 0;
        text += n;
    }
    return text;
}

static void chunks_are_read(void **state)
{
    size_t n;
    assert_string_equal(walk("5\r\nhello\r\n00A\r\n0123456789\r\n0\r\nA: b\r\n\r\nrest", &n),
                        "rest");
    assert_int_equal(n, 15);
    assert_string_equal(walk("0\r\n\r\n", &n), "");
    static const char *const bad[] = {
        "5;a\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n",
        "5\nhello\r\n",
        "5\r\nhello0\r\n",
        "x\r\n",
        "\r\n",
        "123456789\r\n",
        "0\r\nA\r\n\r\n",
        "0\r\n A: b\r\n\r\n",
        "-1\r\n",
        "5\r\nhello\r\r\n",
        "0x5\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (walk(bad[i], &n))
            fail_msg("not refused: %s", bad[i]);
    assert_string_equal(walk("5\r\nhel", &n), "more");
    assert_string_equal(walk("5", &n), "more");
}

/* --- substitution ---------------------------------------------------------------------------- */

static struct subst_secret secrets[2];
static struct subst subst = {secrets, 2};

static int prepare(void **state)
{
    assert_int_equal(
        spec_bound_parse(
            "KEY@api.x.org,*.y.org/v1/,in=query:k,in=header:X-Mine,placeholder=" HOLDER,
            &secrets[0], NULL),
        0);
    assert_int_equal(
        spec_bound_parse("TWO@api.x.org,method=POST,placeholder=" OTHER, &secrets[1], NULL), 0);
    secrets[0].value = "VALUE&1";
    secrets[0].value_len = 7;
    secrets[1].value = HOLDER; /* a value is never looked at again */
    secrets[1].value_len = strlen(HOLDER);
    return 0;
}

static int sent(const char *host, const char *line, const char *fields, const char *want)
{
    char text[1024], why[SUBST_TEXT_MAX] = "";
    AUTO_BUF struct buf out = {.limit = 4096};
    (void)snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: h\r\n%s\r\n", line, fields);
    assert_int_equal(request(text), 0);
    int r = subst_head(&subst, host, &head, &out, why);
    if (r == 0 && want) {
        assert_int_equal(buf_append(&out, "", 1), 0);
        if (!strstr((char *)buf_head(&out), want))
            fail_msg("%s", (char *)buf_head(&out));
    }
    if (r == -EPERM)
        assert_true(strncmp(why, "secret ", 7) == 0);
    return r;
}

static void values_take_their_places(void **state)
{
    assert_int_equal(sent("api.x.org", "GET /a", "Authorization: Bearer " HOLDER "\r\n",
                          "\r\nAuthorization: Bearer VALUE&1\r\n\r\n"),
                     0);
    assert_int_equal(sent("api.x.org", "GET /a", "x-API-key: a" HOLDER HOLDER "b\r\n",
                          "x-API-key: aVALUE&1VALUE&1b\r\n"),
                     0);
    assert_int_equal(sent("api.x.org", "GET /a", "x-mine: " HOLDER "\r\n", "x-mine: VALUE&1\r\n"),
                     0);
    assert_int_equal(
        sent("api.x.org", "GET /a?b=c&k=" HOLDER "&d", "", "GET /a?b=c&k=VALUE%261&d HTTP/1.1\r\n"),
        0);
    /* base64 of "me:" HOLDER, and of "me:VALUE&1" */
    assert_int_equal(sent("api.x.org", "GET /",
                          "Authorization: Basic bWU6bXNiX2FhYWFhYWFhYWFhYWFhYWFhYWFh\r\n",
                          "Authorization: Basic bWU6VkFMVUUmMQ==\r\n"),
                     0);
    assert_int_equal(
        sent("api.x.org", "POST /", "api-key: " OTHER "\r\n", "api-key: " HOLDER "\r\n"), 0);
    assert_int_equal(sent("b.y.org", "GET /v1/x", "api-key: " HOLDER "\r\n", "VALUE&1"), 0);
    assert_int_equal(sent("any.org", "GET /", "Cookie: msb_a\r\n", "Cookie: msb_a\r\n"), 0);
}

static void placeholders_elsewhere_are_violations(void **state)
{
    static const char *const fields[] = {
        "Cookie: " HOLDER "\r\n",  "User-Agent: x" HOLDER "\r\n",    HOLDER ": x\r\n",
        "X-Other: " HOLDER "\r\n", "Origin: https://" HOLDER "\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        assert_int_equal(sent("api.x.org", "GET /", fields[i], NULL), -EPERM);
    static const char *const lines[] = {"GET /" HOLDER, "GET /?" HOLDER "=k", "GET /?x=" HOLDER,
                                        "GET /?K=" HOLDER};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        assert_int_equal(sent("api.x.org", lines[i], "", NULL), -EPERM);
    static const char key[] = "api-key: " HOLDER "\r\n";
    assert_int_equal(sent("x.org", "GET /", key, NULL), -EPERM);
    assert_int_equal(sent("b.api.x.org", "GET /", key, NULL), -EPERM);
    assert_int_equal(sent("evily.org", "GET /v1/", key, NULL), -EPERM);
    static const char *const paths[] = {
        "GET /v1",       "GET /v2/",   "GET /v1/../x", "GET /v1/..",  "GET /v1/%2E./x",
        "GET /v1/a%2fb", "GET /v1//x", "GET /v1/a;b",  "GET /x?/v1/", "GET /v1/\\..\\x"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_int_equal(sent("y.org", paths[i], key, NULL), -EPERM);
    assert_int_equal(sent("api.x.org", "GET /", "api-key: " OTHER "\r\n", NULL), -EPERM); /* POST */
    assert_int_equal(sent("x.org", "GET /",
                          "Authorization: Basic bWU6bXNiX2FhYWFhYWFhYWFhYWFhYWFhYWFh\r\n", NULL),
                     -EPERM);
}

static void values_do_not_make_a_head_too_long(void **state)
{
    static char large[5000];
    memset(large, 'x', sizeof(large));
    secrets[0].value = large;
    secrets[0].value_len = sizeof(large);
    assert_int_equal(sent("api.x.org", "GET /", "api-key: " HOLDER "\r\n", NULL), -E2BIG);
    (void)prepare(state);
}

static void placeholders_are_found_across_pieces(void **state)
{
    static const char text[] = "some text before " HOLDER " and after";
    for (size_t cut = 1; cut < sizeof(text) - 1; cut++)
        for (size_t step = 1; step < 40; step += 13) {
            struct subst_search x = {.n = 0};
            bool found = subst_find(&subst, NULL, &x, text, cut) != NULL;
            for (size_t at = cut; at < sizeof(text) - 1; at += step)
                found |= subst_find(&subst, NULL, &x, text + at,
                                    MIN(step, sizeof(text) - 1 - at)) != NULL;
            assert_true(found);
        }
    struct subst_search x = {.n = 0};
    char zeros[1000] = {0};
    assert_null(subst_find(&subst, NULL, &x, zeros, sizeof(zeros)));
    assert_null(subst_find(&subst, NULL, &x, "msb_", 4));
    assert_null(subst_find(&subst, NULL, &x, NULL, 0)); /* an empty frame */
}

/* A body in two pieces and a rest, which goes on as chunks. */
static void swap_in_pieces(struct swap *w, const char *body, size_t a, size_t b, const char *want)
{
    char whole[1024], got[1024] = "";
    struct http_body at = {.framing = HTTP_CHUNKED, .at = HTTP_BYTES};
    struct buf out = {.limit = 65536};
    size_t n = strlen(body), cut[] = {0, MIN(a, n), MIN(a + b, n), n};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(
            swap_piece(w, &at, HTTP_PIECE_DATA, body + cut[i], cut[i + 1] - cut[i], &out), 0);
    at.at = HTTP_DONE;
    assert_int_equal(swap_piece(w, &at, HTTP_PIECE_TRAILER, "\r\n", 2, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    (void)snprintf(whole, sizeof(whole), "%s", (char *)buf_head(&out));
    buf_free(&out);
    char *p = whole;
    for (size_t size; (size = strtoul(p, &p, 16)) > 0; p += size + 4) /* and twice CR LF */
        (void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%.*s", (int)size, p + 2);
    assert_string_equal(p, "\r\n\r\n");
    assert_string_equal(got, want);
}

static void values_are_swapped_across_pieces(void **state)
{
    static const char body[] = "msb_a" HOLDER HOLDER "msb_" OTHER "msb_aaa";
    struct swap w = {0};
    struct subst_secret x[2] = {secrets[0], secrets[1]};
    struct subst s = {x, 2};
    char why[SUBST_TEXT_MAX];
    x[0].place[0] = (struct subst_place){.where = SUBST_BODY};
    x[0].n_places = 1;
    x[0].value = "v\"&1";
    x[0].value_len = 4;
    static const struct {
        const char *type, *value;
    } form[] = {{"text/plain", "v\"&1"},
                {"application/json", "v\\\"&1"},
                {"application/x-www-form-urlencoded; a=b", "v%22%261"}};
    char text[256], want[256]; /* `head` points into it, to the end */
    for (size_t f = 0; f < ARRAY_LEN(form); f++) {
        (void)snprintf(text, sizeof(text),
                       "POST / HTTP/1.1\r\nHost: api.x.org\r\nContent-Type: %s\r\n"
                       "Content-Length: 3\r\n\r\n",
                       form[f].type);
        (void)snprintf(want, sizeof(want), "msb_a%s%smsb_" OTHER "msb_aaa", form[f].value,
                       form[f].value);
        assert_int_equal(request(text), 0);
        for (size_t a = 0; a < sizeof(body); a += 1)
            for (size_t b = 1; b < 40; b += 7) {
                assert_int_equal(swap_for_request(&w, &s, "api.x.org", &head, why), 0);
                assert_true(w.n == 1 && swap_replaces(&w, HOLDER, strlen(HOLDER)));
                swap_in_pieces(&w, body, a, b, want);
            }
    }
    assert_int_equal(swap_for_request(&w, &s, "other.org", &head, why), 0);
    assert_int_equal(w.n, 0);
    x[0].value = NULL;
    assert_int_equal(swap_for_request(&w, &s, "api.x.org", &head, why), -EAGAIN);
    swap_end(&w);
}

static void values_that_come_back_are_scrubbed(void **state)
{
    struct swap w = {0};
    struct subst_secret x = secrets[0];
    struct subst s = {&x, 1};
    x.value = "0123456789";
    x.value_len = 10;
    x.n_places = 0;
    assert_int_equal(swap_for_response(&w, &s, "api.x.org"), 0);
    assert_int_equal(w.n, 0);
    x.place[x.n_places++] = (struct subst_place){.where = SUBST_RESPONSE};
    for (size_t a = 0; a < 30; a++) {
        assert_int_equal(swap_for_response(&w, &s, "api.x.org"), 0);
        swap_in_pieces(&w, "a01230123456789\"0123456", a, 3, "a0123" HOLDER "\"0123456");
    }
    assert_int_equal(swap_for_response(&w, &s, "other.org"), 0);
    assert_int_equal(w.n, 0);
    swap_end(&w);
}

/* --- telling the interceptor ------------------------------------------------------------------ */

static void a_configuration_arrives(void **state)
{
    struct config_writer w;
    struct config *c = NULL;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(config_begin(&w, 1 << 20), 0);
    config_secret(&w, "KEY", HOLDER, "value");
    for (size_t i = 0; i < secrets[0].n_hosts; i++)
        config_host(&w, &secrets[0].host[i]);
    config_place(&w, &secrets[0].place[0]);
    config_pattern(&w, &(struct subst_host){.name = "looked.at"});
    config_no_verify(&w, &(struct subst_host){.name = "looked.at"});
    config_no_verify(&w, &(struct subst_host){.name = "y.org", .suffix = true});
    config_roots(&w, NULL, "PEM");
    config_ca(&w, "/ca", "CA");
    config_own_ca(&w, "/own.crt", "/own.key");
    assert_int_equal(config_send(&w, pair[0]), 0);
    config_end(&w);
    assert_int_equal(config_recv(pair[1], &c), 0);
    assert_true(c->subst.n == 1 && c->subst.secret[0].n_hosts == 2 &&
                c->subst.secret[0].n_places == 1);
    assert_string_equal(c->subst.secret[0].value, "value");
    assert_string_equal(c->ca_dir, "/ca");
    assert_string_equal(c->ca_cert, "CA");
    assert_string_equal(c->roots[0].pem, "PEM");
    assert_true(config_concerns(c, "api.x.org") && config_concerns(c, "looked.at") &&
                config_concerns(c, "q.y.org") && !config_concerns(c, "other.org"));
    assert_string_equal(c->own_cert, "/own.crt");
    assert_string_equal(c->own_key, "/own.key");
    assert_true(!config_verifies(c, "looked.at") && config_verifies(c, "other.org"));
    assert_true(config_verifies(c, "q.y.org")); /* a secret is bound to it */
    config_free(c);
    static const uint8_t bad[][13] = {{5, 0, 0, 0, 0, 0, 0, 0, 1, 255, 0, 0, 0},
                                      {5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0},
                                      {5, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(send(pair[0], bad[i], 8, 0), 8);
        assert_int_equal(send(pair[0], bad[i] + 8, 5, 0), 5);
        assert_int_equal(config_recv(pair[1], &c), -EPROTO);
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
}

static struct config *tell_for(const char *name, const char *value, const char *host,
                               const char *pem)
{
    struct config_writer w;
    struct config *c = NULL;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(config_begin(&w, 1 << 20), 0);
    if (value)
        config_secret(&w, name, HOLDER, value);
    else
        config_keep(&w, name, HOLDER);
    struct subst_host h = {0};
    (void)snprintf(h.name, sizeof(h.name), "%s", host);
    config_host(&w, &h);
    config_roots(&w, NULL, pem);
    assert_int_equal(config_send(&w, pair[0]), 0);
    config_end(&w);
    assert_int_equal(config_recv(pair[1], &c), 0);
    (void)close(pair[0]);
    (void)close(pair[1]);
    return c;
}

static struct config *tell(const char *name, const char *value)
{
    return tell_for(name, value, "x.org", "PEM");
}

/* A change comes by way of the monitor, which may have been taken over. */
static void a_kept_value_goes_nowhere_else(void **state)
{
    const char *name = NULL;
    struct config *old = tell("KEY", "value");
    struct config *moved = tell_for("KEY", NULL, "evil.org", "PEM");
    struct config *distrusted = tell_for("KEY", NULL, "x.org", "EVIL");
    struct config *placed = tell("KEY", NULL), *twice = tell("KEY", NULL);
    assert_int_equal(config_inherit(moved, old, &name), -EPERM);
    assert_null(moved->subst.secret[0].value);
    placed->subst.secret[0].place[0] = (struct subst_place){.where = SUBST_BODY};
    placed->subst.secret[0].n_places = 1;
    assert_int_equal(config_inherit(placed, old, &name), -EPERM);
    twice->subst.secret[0].n_places = old->subst.secret[0].n_places = 2;
    old->subst.secret[0].place[0] = (struct subst_place){.where = SUBST_SIGN};
    old->subst.secret[0].place[1] = (struct subst_place){.where = SUBST_BODY};
    twice->subst.secret[0].place[0] = twice->subst.secret[0].place[1] =
        old->subst.secret[0].place[1];
    assert_int_equal(config_inherit(twice, old, &name), -EPERM);
    old->subst.secret[0].n_places = 0;
    distrusted->no_verify[distrusted->n_no_verify++] = (struct subst_host){.name = "z.org"};
    assert_int_equal(config_inherit(distrusted, old, &name), 0);
    assert_true(config_verifies(distrusted, "z.org"));
    assert_int_equal(distrusted->n_roots, 1);
    assert_string_equal(distrusted->roots[0].pem, "PEM");
    config_free(old);
    config_free(moved);
    config_free(distrusted);
    config_free(placed);
    config_free(twice);
}

static void a_change_keeps_values(void **state)
{
    const char *name = NULL;
    struct config *old = tell("KEY", "value"), *kept = tell("KEY", NULL);
    struct config *unknown = tell("OTHER", NULL), *again = tell("KEY", NULL);
    assert_null(kept->subst.secret[0].value);
    assert_int_equal(config_inherit(kept, old, &name), 0);
    assert_int_equal(config_inherit(unknown, old, &name), -ENOENT);
    assert_string_equal(name, "OTHER");
    config_free(old); /* it has a copy, and so has the next one */
    assert_string_equal(kept->subst.secret[0].value, "value");
    assert_int_equal(config_inherit(again, kept, &name), 0);
    config_free(kept);
    assert_string_equal(again->subst.secret[0].value, "value");
    config_free(again);
    config_free(unknown);
}

static void strangers_are_found_and_cut(void **state)
{
    static const char names[][SUBST_NAME_MAX] = {"OTHER", "KEY"};
    const char *name = NULL;
    struct config *old = tell("KEY", "value"), *c = tell("KEY", NULL);
    assert_int_equal(config_inherit(c, old, &name), 0);
    assert_null(config_stranger(c, names, 2));
    config_cut(c, names, 2);
    assert_int_equal(c->subst.n, 1);
    assert_string_equal(c->subst.secret[0].value, "value");
    assert_string_equal(config_stranger(c, names, 1), "KEY");
    c->subst.secret[1] = c->subst.secret[0]; /* one that stays moves up */
    c->own[1] = c->own[0];
    c->own[0] = (struct config_vault){0};
    c->subst.n = 2;
    memcpy(c->subst.secret[0].name, "X", 2);
    config_cut(c, names + 1, 1);
    assert_int_equal(c->subst.n, 1);
    assert_string_equal(c->subst.secret[0].name, "KEY");
    assert_string_equal(c->subst.secret[0].value, "value");
    assert_true(config_concerns(c, "x.org"));
    config_cut(c, names, 0);
    assert_false(config_concerns(c, "x.org"));
    config_free(c);
    config_free(old);
}

/* --- what was asked for ---------------------------------------------------------------------- */

static void bindings_are_checked(void **state)
{
    struct spec_bound b = {0};
    struct subst_secret x;
    static const char *const bad[] = {
        "KEY",
        "@x.org",
        "K-Y@x.org",
        "KEY@",
        "KEY@*",
        "KEY@*.com x",
        "KEY@localhost",
        "KEY@1.2.3.4",
        "KEY@x.org,in=bodies",
        "KEY@x.org,scrub=request",
        "KEY@x.org,in=header:",
        "KEY@x.org,in=header:Host",
        "KEY@x.org,in=cookie:a",
        "KEY@x.org,placeholder=short",
        "KEY@x.org,placeholder=with space in it",
        "KEY@x.org,method=post",
        "KEY@x.org,what=ever",
        "KEY@in=header:X",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (spec_bound_add(&b, bad[i], NULL) >= 0)
            fail_msg("not refused: %s", bad[i]);
    assert_int_equal(b.secrets.n, 0);
    assert_int_equal(spec_bound_add(&b, "KEY@X.org", NULL), 0);
    assert_int_equal(spec_bound_add(&b, "KEY@*.y.org/p", NULL), 0);
    assert_int_equal(spec_bound_add(&b, "TWO@x.org,placeholder=my_placeholder", NULL), 0);
    assert_int_equal(b.secrets.n, 2);
    assert_int_equal(spec_bound_parse(b.secrets.v[0], &x, NULL), 0);
    assert_true(x.n_hosts == 2 && x.holder_len == 44 && !x.host[0].suffix && x.host[1].suffix);
    assert_string_equal(x.host[0].name, "x.org");
    assert_string_equal(x.host[1].path, "/p");
    assert_int_equal(spec_bound_validate(&b, true, NULL), -EINVAL);
    assert_int_equal(spec_bound_validate(&b, false, NULL), 0);
    assert_int_equal(spec_bound_add_host(&b.bypass, "--tls-bypass", "*.x.org", NULL), 0);
    assert_int_equal(spec_bound_validate(&b, false, NULL), -EINVAL);
    strlist_free(&b.bypass);
    assert_int_equal(spec_bound_validate(&b, false, NULL), 0);
    assert_int_equal(spec_bound_add_host(&b.no_verify, "--x", "z.org", NULL), 0);
    assert_int_equal(spec_bound_validate(&b, false, NULL), 0);
    assert_int_equal(spec_bound_add_host(&b.no_verify, "--x", "q.y.org", NULL), 0);
    assert_int_equal(spec_bound_validate(&b, false, NULL), -EINVAL);
    strlist_free(&b.no_verify);
    b.quic = true;
    assert_int_equal(spec_bound_validate(&b, false, NULL), -EINVAL);
    b.quic = false;
    assert_non_null(b.ca_cert = strdup("/x"));
    assert_int_equal(spec_bound_validate(&b, false, NULL), -EINVAL);
    assert_non_null(b.ca_key = strdup("relative"));
    assert_int_equal(spec_bound_validate(&b, false, NULL), -EINVAL);
    b.ca_key[0] = '/';
    assert_int_equal(spec_bound_validate(&b, false, NULL), 0);
    assert_int_equal(spec_bound_remove(&b, "KEY"), 0);
    assert_int_equal(spec_bound_remove(&b, "KEY"), -ENOENT);
    assert_true(b.secrets.n == 1 && !b.secrets.v[1]);
    spec_bound_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read),
        cmocka_unit_test(ambiguous_requests_are_refused),
        cmocka_unit_test(heads_have_limits),
        cmocka_unit_test(responses_are_read),
        cmocka_unit_test(chunks_are_read),
        cmocka_unit_test(values_take_their_places),
        cmocka_unit_test(placeholders_elsewhere_are_violations),
        cmocka_unit_test(values_do_not_make_a_head_too_long),
        cmocka_unit_test(placeholders_are_found_across_pieces),
        cmocka_unit_test(a_configuration_arrives),
        cmocka_unit_test(a_change_keeps_values),
        cmocka_unit_test(strangers_are_found_and_cut),
        cmocka_unit_test(a_kept_value_goes_nowhere_else),
        cmocka_unit_test(values_are_swapped_across_pieces),
        cmocka_unit_test(values_that_come_back_are_scrubbed),
        cmocka_unit_test(bindings_are_checked),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
