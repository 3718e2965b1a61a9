/* The agent's control stream, with an agent that may be an impostor. */
#include "fake_vsock.h"
#include "monitor/control.h"
#include "util/cleanup.h"

#include <endian.h>
#include <stdio.h>

enum { AGENT_PORT = 6000 };

struct control_fix {
    struct fix *x;
    struct sandbox_spec spec;
    struct net_host host;
    struct control control;
    unsigned ready, failed, pongs, sealed, logs, downs, lost;
    uint64_t cookie, kills;
    char text[600];
};

static void on_ready(void *ctx)
{
    ((struct control_fix *)ctx)->ready++;
}

static void on_failed(void *ctx, const char *why)
{
    struct control_fix *t = ctx;
    t->failed++;
    (void)snprintf(t->text, sizeof(t->text), "%s", why);
}

static void on_pong(void *ctx, uint64_t cookie)
{
    struct control_fix *t = ctx;
    t->pongs++;
    t->cookie = cookie;
}

static void on_sealed(void *ctx)
{
    ((struct control_fix *)ctx)->sealed++;
}

static void on_down(void *ctx)
{
    ((struct control_fix *)ctx)->downs++;
}

static void on_log(void *ctx, const char *line)
{
    struct control_fix *t = ctx;
    t->logs++;
    (void)snprintf(t->text, sizeof(t->text), "%s", line);
}

static void on_oom(void *ctx, uint64_t kills)
{
    ((struct control_fix *)ctx)->kills = kills;
}

static void on_lost(void *ctx)
{
    ((struct control_fix *)ctx)->lost++;
}

static const struct control_events events = {
    .ready = on_ready,
    .failed = on_failed,
    .pong = on_pong,
    .sealed = on_sealed,
    .down = on_down,
    .log = on_log,
    .oom = on_oom,
    .lost = on_lost,
};

static int control_setup(void **state)
{
    struct control_fix *t = calloc(1, sizeof(*t));
    void *x;
    (void)setup(&x);
    t->x = x;
    spec_init(&t->spec);
    t->spec.hostname = strdup("box");
    assert_int_equal(
        control_init(&t->control, t->x->dev, &t->spec, &t->host, "/dev/vdc", &events, t), 0);
    give_rx(t->x, QSIZE / 2);
    *state = t;
    return 0;
}

static int control_teardown(void **state)
{
    struct control_fix *t = *state;
    void *x = t->x;
    (void)teardown(&x);
    buf_free(&t->control.in);
    buf_free(&t->control.out);
    spec_free(&t->spec);
    free(t);
    return 0;
}

static void call(struct control_fix *t)
{
    send_op(t->x, OP_REQUEST, AGENT_PORT, PROTO_PORT_CONTROL);
    (void)expect(t->x, OP_RESPONSE);
}

static void say(struct control_fix *t, uint16_t type, uint16_t tag, const void *p, size_t n)
{
    AUTO_BUF struct buf b = {.limit = 4096};
    struct proto_writer w;
    proto_begin(&w, &b, type);
    if (tag)
        proto_bytes(&w, tag, p, n);
    assert_int_equal(proto_end(&w), 0);
    send_data(t->x, AGENT_PORT, PROTO_PORT_CONTROL, buf_head(&b), (uint32_t)buf_len(&b));
}

static void greet(struct control_fix *t)
{
    uint32_t version = htole32(PROTO_VERSION_MAJOR << 16);
    call(t);
    say(t, PROTO_HELLO, F_VERSION, &version, sizeof(version));
    struct virtio_vsock_hdr h = {0};
    const uint8_t *p = NULL;
    struct proto_hdr frame = {0};
    assert_true(take(t->x, &h, &p));
    assert_int_equal(h.op, OP_RW);
    if (p)
        memcpy(&frame, p, sizeof(frame));
    assert_int_equal(le16toh(frame.type), PROTO_CONFIG);
}

static void test_agent_comes_up(void **state)
{
    struct control_fix *t = *state;
    uint64_t cookie = htole64(42);
    assert_false(control_ping(&t->control, 1));
    greet(t);
    assert_false(control_ping(&t->control, 1)); /* not before it is ready */
    say(t, PROTO_READY, 0, NULL, 0);
    say(t, PROTO_READY, 0, NULL, 0);
    assert_int_equal(t->ready, 1);
    assert_true(control_ping(&t->control, 42));
    say(t, PROTO_PONG, F_COOKIE, &cookie, sizeof(cookie));
    assert_int_equal(t->cookie, 42);
    say(t, PROTO_FAIL, F_TEXT, "late", 4); /* only a boot can fail */
    assert_int_equal(t->failed, 0);
    say(t, PROTO_SEALED, 0, NULL, 0); /* not asked for */
    assert_int_equal(t->sealed, 0);
    assert_true(control_seal(&t->control));
    say(t, PROTO_SEALED, 0, NULL, 0);
    say(t, PROTO_SEALED, 0, NULL, 0);
    assert_int_equal(t->sealed, 1);
    assert_true(control_seal(&t->control));
    say(t, PROTO_FAIL, F_TEXT, "late", 4); /* ... or sealing */
    assert_int_equal(t->failed, 1);
    say(t, PROTO_LOG, F_TEXT, "a\x1b[1m\nb", 7);
    assert_string_equal(t->text, "a?[1m?b");
    say(t, PROTO_OOM, F_KILLS, &cookie, sizeof(cookie));
    assert_int_equal(t->kills, 42);
    say(t, 999, 0, NULL, 0); /* from a later version */
    say(t, PROTO_DOWN, 0, NULL, 0);
    assert_int_equal(t->downs, 1);
    assert_int_equal(t->lost, 0);
    send_op(t->x, OP_RST, AGENT_PORT, PROTO_PORT_CONTROL);
    assert_int_equal(t->lost, 1);
    assert_false(control_shutdown(&t->control, 1000));
}

static void test_nothing_counts_before_hello(void **state)
{
    struct control_fix *t = *state;
    call(t);
    say(t, PROTO_READY, 0, NULL, 0);
    assert_int_equal(t->ready, 0);
    assert_int_equal(t->failed, 1);
}

static void test_there_is_one_agent(void **state)
{
    struct control_fix *t = *state;
    greet(t);
    send_op(t->x, OP_REQUEST, AGENT_PORT + 1, PROTO_PORT_CONTROL);
    (void)expect(t->x, OP_RST);
    assert_int_equal(t->lost, 0);
    send_op(t->x, OP_RST, AGENT_PORT, PROTO_PORT_CONTROL);
    send_op(t->x, OP_REQUEST, AGENT_PORT + 2, PROTO_PORT_CONTROL); /* nor another one later */
    (void)expect(t->x, OP_RST);
}

static void send_header(struct control_fix *t, uint32_t len, uint16_t type)
{
    struct proto_hdr h = {.len = htole32(len), .type = htole16(type)};
    send_data(t->x, AGENT_PORT, PROTO_PORT_CONTROL, &h, sizeof(h));
}

static void test_impossible_frame(void **state)
{
    struct control_fix *t = *state;
    greet(t);
    send_header(t, PROTO_DATA_MAX + 1, PROTO_LOG);
    assert_int_equal(t->lost, 1);
}

/* A frame that the protocol allows, but our agent never sends: control does not wait for it. */
static void test_frame_that_does_not_fit(void **state)
{
    struct control_fix *t = *state;
    static const uint8_t zeros[8000];
    greet(t);
    send_header(t, PROTO_MSG_MAX, PROTO_CONFIG);
    for (int i = 0; i < 40 && !t->lost; i++)
        send_data(t->x, AGENT_PORT, PROTO_PORT_CONTROL, zeros, sizeof(zeros));
    assert_int_equal(t->lost, 1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, control_setup, control_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_agent_comes_up),          TEST(test_nothing_counts_before_hello),
        TEST(test_there_is_one_agent),      TEST(test_impossible_frame),
        TEST(test_frame_that_does_not_fit),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
