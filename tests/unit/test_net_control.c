/* Requests about a sandbox's network, from honest clients and others. The network's thread does not
 * run, so requests are done at once. */
#include "intercept/link.h"
#include "monitor/net_control.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct fix {
    char dir[64];
    int dirfd;
    struct loop loop;
    struct net_control c;
    struct buf in, out;
};

static int setup(void **state)
{
    static const struct net_host host;
    static const struct net_ports none;
    struct fix *f = calloc(1, sizeof(*f));
    struct spec_net n;
    struct err e = {0};
    spec_net_init(&n);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/msb-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->dirfd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(loop_init(&f->loop), 0);
    assert_int_equal(net_control_setup(&f->c, &n, &host, &none, 16, &f->loop, f->dirfd, f->dirfd,
                                       NULL, NULL, &e),
                     0);
    buf_init(&f->in, 1 << 20);
    buf_init(&f->out, 1 << 20);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fix *f = *state;
    net_control_close(&f->c);
    net_thread_free(f->c.net);
    loop_fini(&f->loop);
    buf_free(&f->in);
    buf_free(&f->out);
    (void)close(f->dirfd);
    int r = remove_tree_at(AT_FDCWD, f->dir);
    free(f);
    return r;
}

/* Sends the frame that w has written; returns the type of the reply, which is in *a. */
static int ask(struct fix *f, struct proto_writer *w, int *fd, struct proto_frame *a)
{
    struct proto_frame q;
    assert_int_equal(proto_end(w), 0);
    assert_int_equal(proto_peek(&f->in, &q), 1);
    buf_reset(&f->out);
    assert_true(net_control_request(&f->c, &q, fd, &f->out));
    proto_consume(&f->in, &q);
    assert_int_equal(proto_peek(&f->out, a), 1);
    return a->type;
}

static void expect_text(const struct proto_frame *a, uint16_t tag, const char *want)
{
    char text[512];
    proto_find_text(a, tag, text, sizeof(text));
    assert_string_equal(text, want);
}

static int explain(struct fix *f, const char *name, uint32_t port, struct proto_frame *a)
{
    struct proto_writer w;
    int fd = -1;
    proto_begin(&w, &f->in, PROTO_NET_ASK);
    proto_str(&w, F_CTL_NAME, name);
    proto_u32(&w, F_CTL_PORT, port);
    proto_u32(&w, F_CTL_PROTO, PROTO_TCP);
    return ask(f, &w, &fd, a);
}

static int set(struct fix *f, const char *json, struct proto_frame *a)
{
    struct proto_writer w;
    int fd = -1;
    proto_begin(&w, &f->in, PROTO_NET_SET);
    proto_str(&w, F_CTL_SPEC, json);
    return ask(f, &w, &fd, a);
}

static void test_policy(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    struct proto_writer w;
    int fd = -1;
    assert_int_equal(explain(f, "Example.COM.", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 1);
    expect_text(&a, F_CTL_WHY, "allowed by rule 1: allow@public");
    assert_int_equal(set(f,
                         "{\"network\":{\"policy\":{\"default_egress\":\"deny\",\"rules\":"
                         "[\"allow@other.org\"]}}}",
                         &a),
                     PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_CUT, 9), 0);
    assert_int_equal(explain(f, "example.com", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 0);
    assert_int_equal(proto_find_num(&a, F_CTL_MAY_ASK, 9), 0);
    proto_begin(&w, &f->in, PROTO_NET_SHOW);
    assert_int_equal(ask(f, &w, &fd, &a), PROTO_OK);
    expect_text(&a, F_CTL_RULE, "allow@other.org");
    assert_int_equal(proto_find_num(&a, F_CTL_DEFAULTS, 9), 2);
    /* An invalid request changes nothing. */
    static const char *const bad[] = {
        "",
        "{",
        "7",
        "{\"network\":3}",
        "{\"network\":{\"policy\":{\"rules\":[\"allow@\"]}}}",
        "{\"network\":{\"policy\":{\"default_egress\":\"perhaps\"}}}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(set(f, bad[i], &a), PROTO_FAIL);
    assert_int_equal(explain(f, "other.org", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 1);
}

static void test_bad_questions(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    assert_int_equal(explain(f, "not a name", 443, &a), PROTO_FAIL);
    assert_int_equal(explain(f, "example.com", 0, &a), PROTO_FAIL);
    assert_int_equal(explain(f, "example.com", 65536, &a), PROTO_FAIL);
    struct proto_writer w;
    int fd = -1;
    proto_begin(&w, &f->in, PROTO_NET_ASK); /* a name with a NUL in it */
    proto_bytes(&w, F_CTL_NAME, "a.b\0c", 5);
    proto_u32(&w, F_CTL_PORT, 1);
    proto_u32(&w, F_CTL_PROTO, PROTO_TCP);
    assert_int_equal(ask(f, &w, &fd, &a), PROTO_FAIL);
    static const uint16_t not_ours[] = {PROTO_PING, PROTO_EXEC, 47, PROTO_LIMIT, 63};
    for (size_t i = 0; i < ARRAY_LEN(not_ours); i++) {
        struct proto_frame q = {.type = not_ours[i]};
        assert_false(net_control_request(&f->c, &q, &fd, &f->out));
    }
}

/* --- ports --- */

static int make_socket(int type, bool bound, bool listens)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bound)
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    if (listens)
        assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static int publish(struct fix *f, uint8_t proto, int *fd, struct proto_frame *a)
{
    struct proto_writer w;
    proto_begin(&w, &f->in, PROTO_PORT_ADD);
    proto_u32(&w, F_CTL_PORT, 80);
    proto_u32(&w, F_CTL_PROTO, proto);
    return ask(f, &w, fd, a);
}

static int unpublish(struct fix *f, uint8_t proto, uint16_t port, struct proto_frame *a)
{
    struct proto_writer w;
    int fd = -1;
    proto_begin(&w, &f->in, PROTO_PORT_RM);
    proto_str(&w, F_CTL_ADDRESS, "127.0.0.1");
    proto_u32(&w, F_CTL_PORT, port);
    proto_u32(&w, F_CTL_PROTO, proto);
    return ask(f, &w, &fd, a);
}

static void test_sockets_are_looked_at(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    AUTO_CLOSE int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    AUTO_CLOSE int deaf = make_socket(SOCK_STREAM, true, false);
    AUTO_CLOSE int unbound = make_socket(SOCK_DGRAM, false, false);
    AUTO_CLOSE int udp = make_socket(SOCK_DGRAM, true, false);
    AUTO_CLOSE int blocking = make_socket(SOCK_STREAM, true, true);
    AUTO_CLOSE int tcp = make_socket(SOCK_STREAM, true, true);
    assert_int_equal(fcntl(blocking, F_SETFL, 0), 0);
    struct {
        int fd;
        uint8_t proto;
    } bad[] = {{-1, PROTO_TCP},       {file, PROTO_TCP}, {deaf, PROTO_TCP}, {udp, PROTO_TCP},
               {blocking, PROTO_TCP}, {tcp, PROTO_UDP},  {tcp, PROTO_ICMP}, {unbound, PROTO_UDP}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int fd = bad[i].fd;
        assert_int_equal(publish(f, bad[i].proto, &fd, &a), PROTO_FAIL);
        assert_int_equal(fd, bad[i].fd); /* still the caller's */
    }
    assert_int_equal(f->c.n_ports, 0);
}

static void test_ports(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    uint16_t port[3];
    for (int i = 0; i < 3; i++) {
        int fd = make_socket(i == 1 ? SOCK_DGRAM : SOCK_STREAM, true, i != 1);
        assert_int_equal(publish(f, i == 1 ? PROTO_UDP : PROTO_TCP, &fd, &a), PROTO_OK);
        assert_int_equal(fd, -1); /* the network's */
        port[i] = f->c.port[i].host;
        assert_true(port[i] > 0);
    }
    AUTO_FREE char *text = NULL;
    char want[16];
    assert_int_equal(file_read_at(f->dirfd, "ports.json", 4096, &text, NULL), 0);
    (void)snprintf(want, sizeof(want), ":%u,", port[2]);
    assert_non_null(strstr(text, want));
    assert_int_equal(unpublish(f, PROTO_UDP, port[0], &a), PROTO_FAIL);
    assert_int_equal(unpublish(f, PROTO_TCP, port[0], &a), PROTO_OK);
    assert_int_equal(unpublish(f, PROTO_TCP, port[0], &a), PROTO_FAIL);
    assert_int_equal(f->c.n_ports, 2);
    /* Handles stay with their ports. */
    assert_int_equal(unpublish(f, PROTO_UDP, port[1], &a), PROTO_OK);
    assert_int_equal(unpublish(f, PROTO_TCP, port[2], &a), PROTO_OK);
    assert_int_equal(faccessat(f->dirfd, "ports.json", F_OK, 0), -1);
}

static void test_no_more_than_there_is_room_for(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    int fd = -1;
    for (int i = 0; i < SPEC_PUBLISH_MAX; i++) {
        fd = make_socket(SOCK_DGRAM, true, false);
        assert_int_equal(publish(f, PROTO_UDP, &fd, &a), PROTO_OK);
    }
    fd = make_socket(SOCK_DGRAM, true, false);
    assert_int_equal(publish(f, PROTO_UDP, &fd, &a), PROTO_FAIL);
    (void)close(fd);
}

/* --- the host's policy --- */

static void lower(struct fix *f, struct ceiling *c, const char *json, int want)
{
    AUTO_JSON json_t *j = json_loads(json, 0, NULL);
    struct err e = {0};
    assert_int_equal(ceiling_add(c, j, &e), want);
    f->c.ceiling = c;
    assert_int_equal(net_control_conform(&f->c, &e), 0);
}

#define WORDS "\"field\":\"x.y\",\"allowed\":\"that\",\"origin\":\"f:1\""

static void test_secrets(void **state)
{
    struct fix *f = *state;
    struct proto_frame a, got;
    struct proto_writer w;
    int fd = -1, pair[2], link[2], fds[2];
    struct link_flow m;
    /* Without an interceptor, there is nothing to tell. */
    proto_begin(&w, &f->in, PROTO_SECRETS);
    assert_int_equal(ask(f, &w, &fd, &a), PROTO_FAIL);
    assert_int_equal(proto_find_num(&a, F_ERRNO, 0), ENOTCONN);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(net_thread_intercept(f->c.net, link[0]), 0);
    proto_begin(&w, &f->in, PROTO_SECRETS);
    assert_int_equal(ask(f, &w, &fd, &a), PROTO_OK);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 0);
    proto_begin(&w, &f->in, PROTO_SECRETS);
    assert_int_equal(ask(f, &w, &pair[1], &a), PROTO_OK);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 1); /* no secret has been asked for */
    assert_true(m.kind == LINK_CHANGE && fds[0] >= 0 && fds[1] < 0);
    (void)close(fds[0]);
    static const char *const spec[] = {
        "{\"network\":{\"secrets\":{\"secrets\":[\"K@x.org,placeholder=msb_aaaaaaaaaaaaaaa\"]}}}",
        "{\"network\":{\"secrets\":{\"secrets\":[\"K@\"]}}}", "{"};
    for (size_t i = 0; i < ARRAY_LEN(spec); i++) {
        proto_begin(&w, &f->in, PROTO_SECRETS);
        proto_str(&w, F_CTL_SPEC, spec[i]);
        assert_int_equal(ask(f, &w, &fd, &got), i == 0 ? PROTO_OK : PROTO_FAIL);
    }
    /* A configuration may have what was asked for. */
    proto_begin(&w, &f->in, PROTO_SECRETS);
    assert_int_equal(ask(f, &w, &pair[1], &a), PROTO_OK);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 1);
    assert_true(m.kind == LINK_NAME && strcmp(m.host, "K") == 0 && fds[0] < 0);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 1);
    assert_true(m.kind == LINK_CHANGE && fds[0] >= 0);
    (void)close(fds[0]);
    struct ceiling c = {0};
    lower(f, &c, "[{\"kind\":\"secrets\",\"rules\":[\"?\"]," WORDS "}]", 0);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 0);
    lower(f, &c, "[{\"kind\":\"secrets\",\"rules\":[\"CI_*\"]," WORDS "}]", 0);
    assert_int_equal(link_recv(link[1], &m, sizeof(m), fds), 1);
    assert_int_equal(m.kind, LINK_CUT); /* without a name before it: nothing is left */
    proto_begin(&w, &f->in, PROTO_SECRETS);
    proto_str(&w, F_CTL_SPEC, spec[0]);
    assert_int_equal(ask(f, &w, &fd, &got), PROTO_FAIL);
    expect_text(&got, F_TEXT, "refused by policy: x.y: asked for K, allowed is that (f:1)");
    ceiling_free(&c);
    (void)close(pair[0]);
    (void)close(pair[1]);
    (void)close(link[1]);
}

static void test_beyond_the_ceiling(void **state)
{
    struct fix *f = *state;
    struct proto_frame a;
    struct ceiling c = {0};
    int fd = make_socket(SOCK_DGRAM, true, false);
    assert_int_equal(publish(f, PROTO_UDP, &fd, &a), PROTO_OK);
    fd = make_socket(SOCK_DGRAM, true, false);
    assert_int_equal(publish(f, PROTO_UDP, &fd, &a), PROTO_OK);
    /* What is beyond it is cut when it comes down. */
    lower(f, &c,
          "[{\"kind\":\"egress\",\"rules\":[\"allow@pypi.org\",\"allow@*.b.org:tcp:443\"]," WORDS
          "},{\"kind\":\"ports\",\"most\":1," WORDS "}]",
          0);
    assert_int_equal(f->c.n_ports, 1);
    assert_int_equal(explain(f, "example.com", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 0);
    assert_int_equal(explain(f, "pypi.org", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 1);
    /* Requests beyond it are refused, others are not. */
    assert_int_equal(set(f, "{\"network\":{\"policy\":{\"default_egress\":\"allow\"}}}", &a),
                     PROTO_FAIL);
    assert_int_equal(proto_find_num(&a, F_ERRNO, 0), ERR_POLICY);
    expect_text(&a, F_TEXT, "refused by policy: x.y: asked for allow@any, allowed is that (f:1)");
    static const char within[] = "{\"network\":{\"policy\":{\"default_egress\":\"deny\",\"rules\":"
                                 "[\"allow@a.b.org:tcp:443\"]}}}";
    assert_int_equal(set(f, within, &a), PROTO_OK);
    fd = make_socket(SOCK_DGRAM, true, false);
    assert_int_equal(publish(f, PROTO_UDP, &fd, &a), PROTO_FAIL);
    expect_text(&a, F_TEXT, "refused by policy: x.y: asked for 2, allowed is that (f:1)");
    (void)close(fd);
    /* It never rises, and what it says twice it keeps once. */
    lower(f, &c,
          "[{\"kind\":\"egress\",\"rules\":[\"allow@any\"]," WORDS
          "},{\"kind\":\"ports\",\"most\":9," WORDS "},{\"kind\":\"ports\",\"most\":1," WORDS "}]",
          0);
    assert_int_equal(c.n, 2);
    assert_int_equal(ceiling_most(&c, LIMIT_PORTS), 1);
    lower(f, &c, "[{\"kind\":\"egress\",\"rules\":[]," WORDS "}]", 0);
    assert_int_equal(c.n, 2);
    assert_int_equal(set(f, within, &a), PROTO_FAIL);
    assert_int_equal(explain(f, "a.b.org", 443, &a), PROTO_OK);
    assert_int_equal(proto_find_num(&a, F_CTL_ALLOW, 9), 0);
    ceiling_free(&c);
}

static void test_limits_that_are_none(void **state)
{
    struct fix *f = *state;
    struct ceiling c = {0};
    static const char *const bad[] = {
        "{}",
        "[7]",
        "[{\"kind\":\"ports\",\"most\":1}]",
        "[{\"kind\":\"cpus\",\"most\":1," WORDS "}]",
        "[{\"kind\":\"ports\",\"most\":-1," WORDS "}]",
        "[{\"kind\":\"ports\",\"most\":\"1\"," WORDS "}]",
        "[{\"kind\":\"egress\",\"most\":1," WORDS "}]",
        "[{\"kind\":\"egress\",\"rules\":[1]," WORDS "}]",
        "[{\"kind\":\"egress\",\"rules\":[\"deny@any\"]," WORDS "}]",
        "[{\"kind\":\"egress\",\"rules\":[\"allow:ingress@any\"]," WORDS "}]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        lower(f, &c, bad[i], -EINVAL);
    assert_int_equal(c.n, 0);
    char text[256];
    for (int i = 0; i <= CEILING_LIMITS_MAX; i++) { /* none is within another */
        (void)snprintf(text, sizeof(text),
                       "[{\"kind\":\"egress\",\"rules\":[\"allow@h%d.org\"]," WORDS "}]", i);
        lower(f, &c, text, i < CEILING_LIMITS_MAX ? 0 : -E2BIG);
    }
    ceiling_free(&c);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_policy),
        TEST(test_bad_questions),
        TEST(test_sockets_are_looked_at),
        TEST(test_ports),
        TEST(test_no_more_than_there_is_room_for),
        TEST(test_secrets),
        TEST(test_beyond_the_ceiling),
        TEST(test_limits_that_are_none),
    };
    return cmocka_run_group_tests_name("net-control", tests, NULL, NULL);
}
