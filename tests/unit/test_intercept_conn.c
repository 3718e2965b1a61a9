/* HTTP/1.1 through the interceptor, without TLS: what arrives on the other side, and how it ends. */
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "intercept/config.h"
#include "intercept/conn.h"
#include "unit.h"
#include "util/cleanup.h"

#define HOLDER "msb_aaaaaaaaaaaaaaaaaaaa"
#define OTHER "msb_bbbbbbbbbbbbbbbbbbbb"

enum { VALUE_MAX = 4000, TURNS = 100 };

/* --- the world ------------------------------------------------------------------------------- */

struct peer {
    int fd;
    bool eof;
    struct buf got;
};

struct world {
    struct loop loop;
    struct subst_secret secret[2];
    struct config_mint mint[2];
    struct config config;
    struct conn_host host;
    struct peer client, server;
    struct buf reports;
    char value[VALUE_MAX + 1];
};

static void report(struct conn_host *h, const struct link_report *r)
{
    struct world *w = CONTAINER_OF(h, struct world, host);
    assert_int_equal(buf_printf(&w->reports, "%s\n", r->text), 0);
}

/* The interceptor's end, which takes only a little at once. */
static int open_peer(struct peer *p)
{
    int pair[2], size = 4096;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
    *p = (struct peer){.fd = pair[0], .got.limit = 1 << 24};
    return pair[1];
}

/* A connection to x.org, with a secret of n bytes that may be in bodies, and one that may not. */
static void open_world(struct world *w, size_t n)
{
    struct link_flow f = {.id.peer.port = LINK_PORT_PLAIN, .host = "x.org"};
    memset(w, 0, sizeof(*w));
    buf_init(&w->reports, 1 << 16);
    memset(w->value, 'v', n);
    w->secret[0] = (struct subst_secret){
        .name = "KEY",
        .holder = HOLDER,
        .holder_len = strlen(HOLDER),
        .value = w->value,
        .value_len = n,
        .host = {{.name = "x.org"}},
        .n_hosts = 1,
        .place = {{.where = SUBST_PLAINTEXT}, {.where = SUBST_BODY}, {.where = SUBST_RESPONSE}},
        .n_places = 2};
    w->secret[1] = w->secret[0];
    memcpy(w->secret[1].name, "OTHER", sizeof("OTHER"));
    memcpy(w->secret[1].holder, OTHER, sizeof(OTHER));
    w->secret[1].n_places = 1;
    w->config.subst = (struct subst){w->secret, 2};
    w->config.mint = w->mint;
    assert_int_equal(loop_init(&w->loop), 0);
    w->host = (struct conn_host){.loop = &w->loop, .config = &w->config, .report = report};
    node_init(&w->host.all);
    int guest = open_peer(&w->client), server = open_peer(&w->server);
    assert_int_equal(conn_new(&w->host, &f, guest, server), 0);
}

static void turn(struct world *w)
{
    for (unsigned i = 0; i < TURNS; i++)
        assert_int_equal(loop_turn(&w->loop, 0), 0);
}

static void hang_up(struct peer *p)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
}

static void close_world(struct world *w)
{
    hang_up(&w->client);
    hang_up(&w->server);
    turn(w);
    assert_int_equal(w->host.n, 0);
    buf_free(&w->client.got);
    buf_free(&w->server.got);
    buf_free(&w->reports);
    loop_fini(&w->loop);
}

static void say(struct world *w, struct peer *p, const char *text)
{
    assert_int_equal(send(p->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL), strlen(text));
    turn(w);
}

/* Everything that has arrived there. */
static const char *heard(struct world *w, struct peer *p)
{
    for (ssize_t n = 1; n > 0;) {
        uint8_t *to = buf_reserve(&p->got, 1 << 16);
        assert_non_null(to);
        n = recv(p->fd, to, 1 << 16, MSG_DONTWAIT);
        p->eof |= n == 0;
        buf_commit(&p->got, n > 0 ? (size_t)n : 0);
        turn(w);
    }
    const char *text = buf_text(&p->got);
    assert_non_null(text);
    return text;
}

/* --- requests -------------------------------------------------------------------------------- */

/* The head alone would make the next request its body. */
static void a_head_is_not_sent_without_its_body(void **state)
{
    enum { LONG = 100000, TIMES = 60 };
    static struct world w;
    static char text[LONG + 1], keys[TIMES * sizeof(HOLDER)];
    open_world(&w, VALUE_MAX);
    (void)snprintf(text, sizeof(text),
                   "POST /1 HTTP/1.1\r\nHost: x.org\r\nContent-Length: %d\r\n\r\n", LONG);
    say(&w, &w.client, text);
    memset(text, 'b', LONG);
    say(&w, &w.client, text); /* most of it waits: the server does not read, but answers */
    say(&w, &w.server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    for (unsigned i = 0; i < TIMES; i++)
        memcpy(keys + i * strlen(HOLDER), HOLDER, sizeof(HOLDER));
    (void)snprintf(text, sizeof(text),
                   "POST /2 HTTP/1.1\r\nHost: x.org\r\nX-Api-Key: %s\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   keys, strlen(keys), keys);
    say(&w, &w.client, text);
    const char *got = heard(&w, &w.server);
    assert_non_null(strstr(got, "POST /1 "));
    assert_null(strstr(got, "POST /2 "));
    assert_true(w.server.eof);
    assert_non_null(strstr(heard(&w, &w.client), "HTTP/1.1 400 Bad Request\r\n"));
    assert_string_equal(buf_text(&w.reports),
                        "the request is too long with its secrets in place\n");
    close_world(&w);
}

/* While a body arrives, another secret moves to the place of the one that may be in it. */
static void secrets_change_during_a_body(void **state)
{
    static const char *const last[] = {HOLDER, OTHER};
    for (size_t i = 0; i < ARRAY_LEN(last); i++) {
        static struct world w;
        char chunk[64];
        open_world(&w, 8);
        say(&w, &w.client,
            "POST / HTTP/1.1\r\nHost: x.org\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        struct subst_secret moved = w.secret[0];
        w.secret[0] = w.secret[1];
        w.secret[1] = moved;
        (void)snprintf(chunk, sizeof(chunk), "18\r\n%s\r\n0\r\n\r\n", last[i]);
        say(&w, &w.client, chunk);
        const char *got = heard(&w, &w.server);
        assert_int_equal(strstr(got, "8\r\nvvvvvvvv\r\n0\r\n\r\n") != NULL, i == 0);
        assert_string_equal(buf_text(&w.reports),
                            i == 0 ? "" : "secret OTHER may not be in the body\n");
        close_world(&w);
    }
}

static int sign(const struct http_head *h, const char *value, const void *body, size_t n,
                struct buf *out, const char **why)
{
    return buf_append(out, "signed\0", 8);
}

/* A body whose request is refused in the end. */
static void a_refused_body_is_not_part_of_the_next(void **state)
{
    static struct world w;
    open_world(&w, 8);
    w.secret[1].place[w.secret[1].n_places++] = (struct subst_place){.where = SUBST_SIGN};
    w.host.sign = sign;
    say(&w, &w.client,
        "POST / HTTP/1.1\r\nHost: x.org\r\nAuthorization: AWS4-HMAC-SHA256 Credential=" OTHER
        "/x\r\nContent-Length: 24\r\n\r\n" HOLDER);
    assert_string_equal(heard(&w, &w.server), "");
    assert_string_equal(buf_text(&w.reports), "a body with secrets in it cannot be signed\n");
    close_world(&w);
    open_world(&w, 8);
    say(&w, &w.client, "POST / HTTP/1.1\r\nHost: x.org\r\nContent-Length: 1\r\n\r\na");
    assert_non_null(strstr(heard(&w, &w.server), "\r\nContent-Length: 1\r\n\r\na"));
    close_world(&w);
}

/* --- responses ------------------------------------------------------------------------------- */

static void scrubbed_bodies_have_an_end(void **state)
{
    static const struct {
        const char *version, *want;
    } client[] = {
        {"1.1", "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
                "6\r\nit is \r\n1e\r\n" HOLDER ", vvvv\r\n0\r\n\r\n"},
        /* It knows no chunks, and asks to keep a connection that has to end. */
        {"1.0", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nit is " HOLDER ", vvvv"},
    };
    for (size_t i = 0; i < ARRAY_LEN(client); i++) {
        static struct world w;
        char text[256];
        open_world(&w, 8);
        w.secret[0].n_places = 3;
        (void)snprintf(text, sizeof(text),
                       "GET / HTTP/%s\r\nHost: x.org\r\nConnection: keep-alive\r\n\r\n",
                       client[i].version);
        say(&w, &w.client, text);
        assert_non_null(strstr(heard(&w, &w.server), "GET / "));
        say(&w, &w.server,
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: keep-alive\r\n\r\nit is vvv");
        say(&w, &w.server, "vvvvv, vvvv");
        assert_string_equal(heard(&w, &w.client), client[i].want);
        assert_int_equal(w.client.eof, i == 1);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_not_sent_without_its_body),
        cmocka_unit_test(secrets_change_during_a_body),
        cmocka_unit_test(a_refused_body_is_not_part_of_the_next),
        cmocka_unit_test(scrubbed_bodies_have_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
