/* The vhost-user back end with a good front end, over a socket pair. */
#include "fake_front_end.h"

/* --- a good front end ------------------------------------------------------------------------ */

static void test_start_serve_stop(void **state)
{
    struct fix *x = *state;
    start(x);
    assert_int_equal(x->toy->kicks, 1); /* when it started */
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
    assert_memory_equal(x->ram + BUF, "zzzzzzzz", 8);
    uint8_t call[64];
    assert_int_equal(recv(x->call, call, sizeof(call), MSG_DONTWAIT), 8);
    msg_state(x, GET_VRING_BASE, 0, 0);
    uint32_t base[2];
    assert_int_equal(reply(x, GET_VRING_BASE, base, 8), 8);
    assert_int_equal(base[1], 1);
    assert_false(x->toy->dev.vq[0].running);
    assert_int_equal(x->toy->resets, 1);
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1); /* it is stopped */
    msg_state(x, SET_VRING_BASE, 0, 1);
    msg_u64(x, SET_VRING_KICK, 0, x->kick);
    turn(x);
    assert_int_equal(used_idx(x), 2); /* started again, it finds what is there */
    msg_state(x, SET_VRING_ENABLE, 0, 0);
    assert_false(x->toy->dev.vq[0].running);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    add_buffer(x, 2);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 3); /* and goes on where it was */
}

static void test_config(void **state)
{
    struct fix *x = *state;
    negotiate(x);
    uint8_t m[12 + 256] = {0}, r[512];
    uint32_t h[3] = {0, 24, 0};
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 12 + 24, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 36);
    assert_memory_equal(r + 12, x->toy->config, 24);
    h[0] = 20; /* partly outside: zeros */
    h[1] = 8;
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 12 + 8, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 20);
    assert_int_equal(r[12 + 3], 24);
    assert_int_equal(r[12 + 4], 0);
    h[0] = 4;
    h[1] = 2;
    memcpy(m, h, 12);
    m[12] = 77;
    m[13] = 78;
    msg(x, SET_CONFIG, m, 14, -1);
    assert_int_equal(x->toy->config[4], 77);
    assert_int_equal(x->toy->config[5], 78);
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
    assert_int_equal(x->gone, 0);
}

static void test_listener_accepts_one(void **state)
{
    struct fix y = {0};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct virtio_dev *dev;
    assert_int_equal(loop_init(&y.loop), 0);
    assert_int_equal(virtio_rng_new(&dev), 0);
    int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof(a);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(sa_family_t)), 0); /* autobind */
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(listen(l, 4), 0);
    assert_int_equal(vhost_user_new(&y.v, &y.loop, dev, l, &events, &y), 0);
    int c = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int d = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(c, (struct sockaddr *)&a, len), 0);
    turn(&y);
    assert_int_equal(y.connected, 1);
    assert_true(connect(d, (struct sockaddr *)&a, len) < 0); /* the listener is gone */
    close(c);
    turn(&y);
    assert_int_equal(y.gone, 1);
    vhost_user_free(y.v);
    virtio_dev_free(dev);
    loop_fini(&y.loop);
    close(d);
}

static void test_messages_in_pieces(void **state)
{
    struct fix *x = *state;
    /* Byte by byte; the loop turns in between and nothing blocks. */
    uint8_t m[20] = {SET_FEATURES, 0, 0, 0, 1, 0, 0, 0, 8};
    uint64_t f = VIRTIO_BASE_FEATURES | 1ULL << 30;
    memcpy(m + 12, &f, 8);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(x->toy->dev.acked, 0);
        assert_int_equal(send(x->fd, m + i, 1, 0), 1);
        turn(x);
    }
    assert_int_equal(x->toy->dev.acked, VIRTIO_BASE_FEATURES);
    /* Many at once. */
    uint8_t many[12 * 50] = {0};
    for (int i = 0; i < 50; i++) {
        many[12 * i] = GET_FEATURES;
        many[12 * i + 4] = 1;
    }
    assert_int_equal(send(x->fd, many, sizeof(many), 0), sizeof(many));
    turn(x);
    for (int i = 0; i < 50; i++)
        (void)reply_u64(x, GET_FEATURES);
    assert_int_equal(x->gone, 0);
}

static void test_unknown_requests(void **state)
{
    struct fix *x = *state;
    uint64_t v = 1;
    int fd = eventfd(0, EFD_CLOEXEC);
    msg(x, 999, &v, 8, -1);
    msg(x, 0, NULL, 0, -1);
    msg(x, 7, &v, 8, fd); /* with a descriptor, which is closed */
    msg(x, SET_VRING_ERR, &v, 8, fd);
    msg(x, 21, NULL, 0, fd);
    send_with(x, 999, 1 | NEED_REPLY, 0, NULL, 0, NULL, 0);
    assert_int_not_equal(reply_u64(x, 999), 0);
    send_with(x, SET_OWNER, 1 | NEED_REPLY, 0, NULL, 0, NULL, 0);
    assert_int_equal(reply_u64(x, SET_OWNER), 0);
    assert_int_equal(x->gone, 0);
    close(fd);
}

static void test_memory_table_again_while_running(void **state)
{
    struct fix *x = *state;
    start(x);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    good_mem(x); /* stops, maps, goes on */
    assert_true(x->toy->dev.vq[0].running);
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 2);
    mem_table(x, NULL, 0, NULL, 0); /* none at all */
    assert_false(x->toy->dev.vq[0].running);
    assert_int_equal(x->gone, 0);
}

static void test_reset_owner_stops_everything(void **state)
{
    struct fix *x = *state;
    start(x);
    msg(x, RESET_OWNER, NULL, 0, -1);
    assert_false(virtio_dev_running(&x->toy->dev));
    assert_int_equal(x->toy->resets, 1);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_true(x->toy->dev.vq[0].running);
}

static void test_end_of_file(void **state)
{
    struct fix *x = *state;
    start(x);
    close_fd(&x->fd);
    turn(x);
    assert_int_equal(x->gone, 1);
    assert_string_equal(x->reason, "vhost-user: the front end is gone");
    assert_int_equal(x->toy->resets, 1);
    kick(x); /* nothing is there any more */
    turn(x);
}

static void test_freed_inside_the_callback(void **state)
{
    struct fix *x = *state;
    start(x);
    x->free_when_told = true;
    add_buffer(x, 999); /* breaks the device */
    kick(x);
    turn(x);
    assert_int_equal(x->broken, 1);
    assert_null(x->v);
    turn(x);
    assert_int_equal(x->gone, 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_start_serve_stop),
        T(test_config),
        cmocka_unit_test(test_listener_accepts_one),
        T(test_messages_in_pieces),
        T(test_unknown_requests),
        T(test_memory_table_again_while_running),
        T(test_reset_owner_stops_everything),
        T(test_end_of_file),
        T(test_freed_inside_the_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
