/* The vhost-user back end against front ends that violate the protocol in every way we know. */
#include "fake_front_end.h"

/* --- bad front ends -------------------------------------------------------------------------- */

static void test_h09_configuration_is_latched(void **state)
{
    struct fix *x = *state;
    start(x);
    struct virtq before = x->toy->dev.vq[0];
    msg_state(x, SET_VRING_NUM, 0, 8);
    msg_state(x, SET_VRING_BASE, 0, 77);
    ring_addr(x, 0, RAM_USER + 1024, RAM_USER + 1024, RAM_USER + 1024);
    msg_u64(x, SET_FEATURES, 1ULL << 32, -1);
    assert_memory_equal(&x->toy->dev.vq[0], &before, sizeof(before));
    assert_int_equal(x->toy->dev.ignored, 4);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
    /* Re-enabling, and a second kick descriptor. */
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    int second = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    msg_u64(x, SET_VRING_KICK, 0, second);
    close_fd(&x->kick);
    x->kick = second;
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 2);
}

static void test_h09_kick_before_everything(void **state)
{
    struct fix *x = *state;
    x->kick = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_KICK, 0, x->kick);
    kick(x);
    turn(x);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    kick(x);
    turn(x);
    assert_int_equal(x->toy->kicks, 0);
    assert_int_equal(x->gone, 0);
}

static void test_h13_notify_storm(void **state)
{
    struct fix *x = *state;
    start(x);
    for (int i = 0; i < 1000000 / 50; i++) {
        for (int k = 0; k < 50; k++)
            kick(x);
        assert_int_equal(loop_turn(&x->loop, 0), 0);
    }
    /* However many kicks: once per turn. */
    assert_in_range(x->toy->kicks, 1000000 / 50, 1000000 / 50 + 8);
    turn(x);
    unsigned kicks = x->toy->kicks;
    turn(x);
    assert_int_equal(x->toy->kicks, kicks); /* and none without, though they are never read */
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);     /* the socket is served as ever */
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
    /* The counter of the eventfd is not ours to read, nor can it stop us. */
    uint64_t full = UINT64_MAX - 1, n;
    assert_int_equal(read(x->kick, &n, 8), 8);
    assert_int_equal(write(x->kick, &full, 8), 8);
    turn(x);
    assert_int_equal(read(x->kick, &n, 8), 8);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
}

static void test_h13_work_is_spread_over_turns(void **state)
{
    struct fix *x = *state;
    start(x);
    x->toy->budget = 4;
    for (uint16_t i = 0; i < QSIZE; i++)
        add_buffer(x, i);
    kick(x);
    assert_int_equal(loop_turn(&x->loop, 0), 0);
    assert_in_range(used_idx(x), 4, 8);
    for (int i = 0; i < 10; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    assert_int_equal(used_idx(x), QSIZE);
}

static void test_a_broken_ring_is_told_once(void **state)
{
    struct fix *x = *state;
    start(x);
    add_buffer(x, 999);
    kick(x);
    turn(x);
    kick(x);
    turn(x);
    assert_int_equal(x->broken, 1);
    assert_string_equal(x->reason, "queue: descriptor index out of range");
    assert_int_equal(x->gone, 0);
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
}

static void test_h08_rings_outside_memory(void **state)
{
    struct fix *x = *state;
    negotiate(x);
    set_up_ring(x);
    const uint64_t bad[] = {
        0, RAM_GPA, RAM_USER - 16, RAM_USER + RAM_SIZE, RAM_USER + RAM_SIZE - 16, UINT64_MAX - 15};
    for (unsigned i = 0; i < 6; i++) {
        ring_addr(x, 0, bad[i], RAM_USER + AVAIL, RAM_USER + USED);
        msg_state(x, SET_VRING_ENABLE, 0, 1);
        turn(x);
        assert_false(x->toy->dev.vq[0].running);
        assert_int_equal(x->broken, i + 1);
        msg_state(x, SET_VRING_ENABLE, 0, 0);
    }
    ring_addr(x, 0, RAM_USER + DESC, RAM_USER + AVAIL, RAM_USER + USED);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_true(x->toy->dev.vq[0].running);
}

static void test_malformed_headers(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 1, 0xffffffff, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_wrong_version(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 2, 0, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_reply_flag_in_a_request(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 5, 0, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_wrong_payload_size(void **state)
{
    struct fix *x = *state;
    uint64_t v[2] = {0};
    msg(x, SET_FEATURES, v, 9, -1);
    expect_gone(x);
}
static void test_short_ring_message(void **state)
{
    struct fix *x = *state;
    uint64_t v[5] = {0};
    msg(x, SET_VRING_ADDR, v, 39, -1);
    expect_gone(x);
}
static void test_features_not_offered(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_FEATURES, UINT64_MAX, -1);
    expect_gone(x);
}
static void test_protocol_features_not_offered(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_PROTOCOL_FEATURES, 1, -1);
    expect_gone(x);
}
static void test_queue_index_out_of_range(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 2, 16);
    expect_gone(x);
}
static void test_queue_index_huge(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_ENABLE, 0xffffffff, 1);
    expect_gone(x);
}
static void test_kick_index_out_of_range(void **state)
{
    struct fix *x = *state;
    x->kick = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_KICK, 0xff, x->kick);
    expect_gone(x);
}
static void test_h07_queue_size_zero(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 0);
    expect_gone(x);
}
static void test_h07_queue_size_not_a_power_of_two(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 24);
    expect_gone(x);
}
static void test_h07_queue_size_too_large(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 65536 + 16);
    expect_gone(x);
}
static void test_gone_within_a_message(void **state)
{
    struct fix *x = *state;
    assert_int_equal(send(x->fd, "\1\0\0\0\1\0", 6, 0), 6);
    turn(x);
    assert_int_equal(x->gone, 0);
    close_fd(&x->fd);
    turn(x);
    assert_int_equal(x->gone, 1);
}
static void test_too_many_descriptors(void **state)
{
    struct fix *x = *state;
    int fds[12];
    for (int i = 0; i < 12; i++)
        fds[i] = x->mem_fd;
    send_with(x, SET_OWNER, 1, 0, NULL, 0, fds, 12);
    expect_gone(x);
}
static void test_a_descriptor_where_none_belongs(void **state)
{
    struct fix *x = *state;
    msg(x, SET_OWNER, NULL, 0, x->mem_fd);
    expect_gone(x);
}
static void test_replies_that_nobody_reads(void **state)
{
    struct fix *x = *state;
    uint8_t many[12 * 100] = {0};
    for (int i = 0; i < 100; i++) {
        many[12 * i] = GET_FEATURES;
        many[12 * i + 4] = 1;
    }
    for (int i = 0; i < 1000 && !x->gone; i++) {
        (void)send(x->fd, many, sizeof(many), MSG_DONTWAIT | MSG_NOSIGNAL);
        turn(x);
    }
    assert_int_equal(x->gone, 1); /* not blocked, not queued: disconnected */
}

/* Kick and call descriptors of the wrong kind. */
static void bad_kick(struct fix *x, int fd)
{
    msg_u64(x, SET_VRING_KICK, 0, fd);
    expect_gone(x);
    close(fd);
}
static void test_kick_is_a_file(void **state)
{
    bad_kick(*state, memfd_create("x", MFD_CLOEXEC));
}
static void test_kick_is_a_pipe(void **state)
{
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    close(p[1]);
    bad_kick(*state, p[0]);
}
static void test_kick_is_an_epoll(void **state)
{
    bad_kick(*state, epoll_create1(EPOLL_CLOEXEC));
}
static void test_kick_is_missing(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_VRING_KICK, 0, -1);
    expect_gone(x);
}
static void test_kick_by_polling(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_VRING_KICK, 0x100, -1);
    expect_gone(x);
}
static void test_call_is_no_socket(void **state)
{
    struct fix *x = *state;
    int fd = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_CALL, 0, fd);
    expect_gone(x);
    close(fd);
}

/* Taken from a monitor alone, and not if a write to it could block. */
static void test_call_is_an_eventfd(void **state)
{
    struct fix *x = *state;
    int may_block = eventfd(0, EFD_CLOEXEC), fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    vhost_user_take_eventfds(x->v);
    start(x);
    msg_u64(x, SET_VRING_CALL, 0, fd);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    uint64_t n = 0;
    assert_int_equal(read(fd, &n, sizeof(n)), sizeof(n));
    assert_int_equal(n, 1);
    n = UINT64_MAX - 1; /* full: nothing waits */
    assert_int_equal(write(fd, &n, sizeof(n)), sizeof(n));
    uint16_t event = x->avail_idx;
    memcpy(x->ram + AVAIL + 4 + 2 * QSIZE, &event, 2);
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 2);
    msg_u64(x, SET_VRING_CALL, 0, may_block);
    expect_gone(x);
    close(fd);
    close(may_block);
}

static void test_a_call_socket_that_is_full(void **state)
{
    struct fix *x = *state;
    start(x);
    for (unsigned i = 0; i < 30000; i++) { /* its reader sleeps */
        uint16_t event = x->avail_idx;
        memcpy(x->ram + AVAIL + 4 + 2 * QSIZE, &event, 2); /* interrupt for each */
        add_buffer(x, (uint16_t)(i % QSIZE));
        kick(x);
        assert_int_equal(loop_turn(&x->loop, 0), 0);
    }
    assert_int_equal(used_idx(x), 30000);
    close_fd(&x->call); /* and then it goes away: no SIGPIPE */
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 30001);
}

/* Memory tables that lie. */
static void bad_mem(struct fix *x, struct region r)
{
    mem_table(x, &r, 1, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_region_empty(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, 0, RAM_USER, 0});
}
static void test_region_beyond_the_file(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, RAM_USER, RAM_OFFSET + 1});
}
static void test_region_wraps_in_the_file(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, RAM_USER, UINT64_MAX - 4095});
}
static void test_region_wraps_in_the_guest(void **state)
{
    bad_mem(*state, (struct region){UINT64_MAX - 4095, RAM_SIZE, RAM_USER, 0});
}
static void test_region_wraps_in_the_front_end(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, UINT64_MAX - 4095, 0});
}
static void test_region_huge(void **state)
{
    bad_mem(*state, (struct region){0, UINT64_MAX, 0, 0});
}
static void test_regions_overlap(void **state)
{
    struct fix *x = *state;
    struct region r[] = {{RAM_GPA, 8192, RAM_USER, 0}, {RAM_GPA + 4096, 8192, RAM_USER + 8192, 0}};
    int fds[] = {x->mem_fd, x->mem_fd};
    mem_table(x, r, 2, fds, 2);
    expect_gone(x);
}
static void test_region_fd_is_a_pipe(void **state)
{
    struct fix *x = *state;
    struct region r = {RAM_GPA, 4096, RAM_USER, 0};
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    mem_table(x, &r, 1, p, 1);
    expect_gone(x);
    close(p[0]);
    close(p[1]);
}
static void test_more_regions_than_descriptors(void **state)
{
    struct fix *x = *state;
    struct region r[] = {{0, 4096, 0, 0}, {4096, 4096, 4096, 4096}};
    mem_table(x, r, 2, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_table_with_a_false_count(void **state)
{
    struct fix *x = *state;
    uint8_t b[40] = {0xff, 0xff, 0xff, 0xff};
    send_with(x, SET_MEM_TABLE, 1, 40, b, 40, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_h12_config_out_of_bounds(void **state)
{
    struct fix *x = *state;
    uint8_t m[268] = {0}, r[512];
    uint32_t h[3] = {0xffffffff, 256, 0};
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 268, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 268);
    for (int i = 0; i < 256; i++)
        assert_int_equal(r[12 + i], 0);
    h[1] = 0xffffffff; /* says more than it has */
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 20, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 0); /* the protocol's error */
    msg(x, GET_CONFIG, m, 3, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 0);
    h[0] = 23;
    h[1] = 4;
    memcpy(m, h, 12);
    msg(x, SET_CONFIG, m, 16, -1); /* partly outside: refused as a whole */
    assert_int_equal(x->toy->config[23], 24);
    assert_int_equal(x->gone, 0);
    h[1] = 5;
    memcpy(m, h, 12);
    msg(x, SET_CONFIG, m, 16, -1);
    expect_gone(x);
}

/* cmocka takes SIGBUS for itself, so this one runs before it, in a separate process. */
static int cut_off_memory(void)
{
    void *state;
    (void)setup(&state);
    struct fix *x = state;
    start(x);
    add_buffer(x, 0); /* its 8 bytes are on a page that goes away */
    if (ftruncate(x->mem_fd, RAM_OFFSET + BUF) < 0)
        return 2;
    kick(x);
    turn(x);
    if (x->gone != 1 || virtio_dev_running(&x->toy->dev))
        return 3;
    return strcmp(x->reason, "vhost-user: the guest cut off its own memory") == 0 ? 0 : 4;
}

static int cut_off_status;

static void test_a_guest_that_cuts_off_its_memory(void **state)
{
    assert_true(WIFEXITED(cut_off_status));
    assert_int_equal(WEXITSTATUS(cut_off_status), 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(cut_off_memory());
    (void)waitpid(pid, &cut_off_status, 0);
    const struct CMUnitTest tests[] = {
        T(test_h07_queue_size_zero),
        T(test_h07_queue_size_not_a_power_of_two),
        T(test_h07_queue_size_too_large),
        T(test_h08_rings_outside_memory),
        T(test_h09_configuration_is_latched),
        T(test_h09_kick_before_everything),
        T(test_h12_config_out_of_bounds),
        T(test_h13_notify_storm),
        T(test_h13_work_is_spread_over_turns),
        T(test_a_broken_ring_is_told_once),
        T(test_malformed_headers),
        T(test_wrong_version),
        T(test_reply_flag_in_a_request),
        T(test_wrong_payload_size),
        T(test_short_ring_message),
        T(test_features_not_offered),
        T(test_protocol_features_not_offered),
        T(test_queue_index_out_of_range),
        T(test_queue_index_huge),
        T(test_kick_index_out_of_range),
        T(test_gone_within_a_message),
        T(test_too_many_descriptors),
        T(test_a_descriptor_where_none_belongs),
        T(test_replies_that_nobody_reads),
        T(test_kick_is_a_file),
        T(test_kick_is_a_pipe),
        T(test_kick_is_an_epoll),
        T(test_kick_is_missing),
        T(test_kick_by_polling),
        T(test_call_is_no_socket),
        T(test_call_is_an_eventfd),
        T(test_a_call_socket_that_is_full),
        cmocka_unit_test(test_a_guest_that_cuts_off_its_memory),
        T(test_region_empty),
        T(test_region_beyond_the_file),
        T(test_region_wraps_in_the_file),
        T(test_region_wraps_in_the_guest),
        T(test_region_wraps_in_the_front_end),
        T(test_region_huge),
        T(test_regions_overlap),
        T(test_region_fd_is_a_pipe),
        T(test_more_regions_than_descriptors),
        T(test_table_with_a_false_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
