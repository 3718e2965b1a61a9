/* A device behind virtio-mmio that another process serves: the front end against our own back end,
 * each on a thread, and against servers that lie or die. */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mmio_bench.h"
#include "unit.h"
#include "util/cleanup.h"
#include "virtio/vhost_front.h"
#include "virtio/vhost_msg.h"
#include "virtio/vhost_user.h"

enum { QUEUES = 2, SIZE = 16, WAIT_MS = 10000 };

/* --- a device, in the server ------------------------------------------------------------------ */

struct dev {
    struct virtio_dev dev; /* first: the ops get at the rest by it */
    char config[24];
    _Atomic unsigned served, resets;
    struct virtq_chain c;
};

static int64_t dev_kick(struct virtio_dev *d, unsigned queue)
{
    struct dev *v = (struct dev *)(void *)d;
    while (virtio_dev_pop(d, queue, &v->c) > 0) {
        virtq_push(&d->vq[queue], &v->c, (uint32_t)virtq_chain_write(&v->c, 0, "served", 6));
        v->served++;
        virtio_dev_interrupt(d, queue);
    }
    return VIRTIO_IDLE;
}

static void dev_reset(struct virtio_dev *d)
{
    ((struct dev *)(void *)d)->resets++;
}

static const struct virtio_dev_ops dev_ops = {
    .name = "test", .id = 42, .n_queues = QUEUES, .kick = dev_kick, .reset = dev_reset};

/* --- both sides ------------------------------------------------------------------------------- */

struct bench {
    struct runner front, back;
    struct fake f;
    int mem_fd;
    struct dev d;
    struct vhost_user *v;
    struct virtio_dev *dev; /* the front end */
    struct mmio *m;
    uint32_t *page;
    int server_fd; /* the server's end, where the test plays the server */
    struct seen seen;
};

/* Guest memory in a file, as the engine makes it. */
static void make_memory(struct bench *b)
{
    fake_init(&b->f);
    free(b->f.ram);
    b->mem_fd = memfd_create("ram", MFD_CLOEXEC);
    assert_int_equal(ftruncate(b->mem_fd, FAKE_RAM), 0);
    b->f.ram = mmap(NULL, FAKE_RAM, PROT_READ | PROT_WRITE, MAP_SHARED, b->mem_fd, 0);
    assert_ptr_not_equal(b->f.ram, MAP_FAILED);
    guest_mem_clear(&b->f.mem);
    assert_int_equal(guest_mem_add(&b->f.mem, FAKE_GPA, FAKE_RAM, b->f.ram), 0);
    for (unsigned i = 0; i < QUEUES; i++)
        fake_ring(&b->f, i, SIZE);
}

static int front_end(struct bench *b, int fd)
{
    struct vhost_front_params p = {
        .kind = &dev_ops, .fd = fd, .mem = &b->f.mem, .mem_fd = b->mem_fd};
    return vhost_front_new(&b->dev, &b->front.loop, &p);
}

static void begin(struct bench *b, int sock[2])
{
    *b = (struct bench){.server_fd = -1};
    make_memory(b);
    runner_init(&b->front);
    runner_init(&b->back);
    b->page = new_page();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sock), 0);
}

/* With a server that does as it should. */
static void setup(struct bench *b)
{
    int sock[2];
    begin(b, sock);
    b->d.dev = (struct virtio_dev){.ops = &dev_ops,
                                   .features = VIRTIO_BASE_FEATURES | 1,
                                   .config = b->d.config,
                                   .config_len = sizeof(b->d.config)};
    (void)strcpy(b->d.config, "the device's own");
    assert_int_equal(vhost_user_new_connected(&b->v, &b->back.loop, &b->d.dev, sock[1], NULL, NULL),
                     0);
    vhost_user_take_eventfds(b->v);
    runner_start(&b->back);
    assert_int_equal(front_end(b, sock[0]), 0);
    assert_int_equal(mmio_new(&b->m, &b->front.loop, b->dev, &b->f.mem, b->page, &events, &b->seen),
                     0);
    runner_start(&b->front);
}

static void teardown(struct bench *b)
{
    runner_stop(&b->front);
    runner_stop(&b->back);
    mmio_free(b->m);
    virtio_dev_free(b->dev);
    vhost_user_free(b->v);
    runner_fini(&b->front);
    runner_fini(&b->back);
    close_fd(&b->server_fd);
    free(b->page);
    (void)munmap(b->f.ram, FAKE_RAM);
    close_fd(&b->mem_fd);
    b->f.ram = NULL;
    fake_fini(&b->f);
}

enum {
    UP = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK,
    LIVE = UP | VIRTIO_CONFIG_S_DRIVER_OK,
};

static void bring_up(struct bench *b, uint32_t size)
{
    wr(b, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
    put_features(b->m, VIRTIO_BASE_FEATURES);
    wr(b, VIRTIO_MMIO_STATUS, UP);
    for (uint32_t q = 0; q < QUEUES; q++)
        put_queue(b->m, q, size, &b->f.q[q].cfg);
    wr(b, VIRTIO_MMIO_STATUS, LIVE);
}

static bool interrupted(struct bench *b, int ms)
{
    struct pollfd p = {.fd = mmio_irq_fd(b->m), .events = POLLIN};
    uint64_t n;
    return poll(&p, 1, ms) == 1 && read(p.fd, &n, sizeof(n)) == (ssize_t)sizeof(n);
}

/* One request, as a guest makes it: a kick by eventfd, an interrupt by eventfd. */
static void one_request(struct bench *b, unsigned queue)
{
    static const uint64_t one = 1;
    uint64_t at = fake_alloc(&b->f, 64, 8);
    struct fake_buf buf = {.addr = at, .len = 64, .in = true};
    uint32_t id, len = 0;
    *fake_used_event(&b->f, queue) = fake_used_idx(&b->f, queue); /* tell me of the next one */
    (void)fake_add(&b->f, queue, &buf, 1);
    assert_int_equal(write(mmio_kick_fd(b->m, queue), &one, sizeof(one)), sizeof(one));
    assert_true(interrupted(b, WAIT_MS));
    assert_true(fake_used(&b->f, queue, &id, &len));
    assert_int_equal(len, 6);
    assert_memory_equal(fake_ptr(&b->f, at), "served", 6);
    assert_true(rd(b, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_VRING);
}

static void fresh_rings(struct bench *b)
{
    for (unsigned i = 0; i < QUEUES; i++)
        fake_ring(&b->f, i, SIZE);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_features_and_configuration_are_the_servers(void **state)
{
    struct bench b;
    char config[24];
    setup(&b);
    assert_int_equal(rd(&b, VIRTIO_MMIO_DEVICE_ID), 42);
    assert_true(rd(&b, VIRTIO_MMIO_DEVICE_FEATURES) == (uint32_t)(VIRTIO_BASE_FEATURES | 1));
    for (unsigned i = 0; i < sizeof(config); i++)
        mmio_read(b.m, VIRTIO_MMIO_CONFIG + i, &config[i], 1);
    assert_string_equal(config, "the device's own");
    teardown(&b);
}

static void test_requests_go_straight_through(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b, SIZE);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), LIVE);
    for (unsigned i = 0; i < 3; i++)
        one_request(&b, i % QUEUES);
    /* An acknowledgement that came to us does not take away what the server cannot set. */
    wr(&b, VIRTIO_MMIO_INTERRUPT_ACK, 3);
    one_request(&b, 0);
    assert_int_equal(b.d.served, 4);
    assert_null(b.seen.broken);
    teardown(&b);
}

static void test_a_reset_waits_for_the_server(void **state)
{
    struct bench b;
    setup(&b);
    for (unsigned i = 0; i < 5; i++) {
        bring_up(&b, SIZE);
        one_request(&b, 1);
        wr(&b, VIRTIO_MMIO_STATUS, 0);
        assert_int_equal(b.d.resets, i + 1);
        assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), 0);
        assert_int_equal(rd(&b, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
        assert_int_equal(b.seen.lives, 0);
        fresh_rings(&b);
    }
    teardown(&b);
}

static void test_nonsense_breaks_the_device_and_not_the_server(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b, SIZE + 1);
    assert_true(rd(&b, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
    wr(&b, VIRTIO_MMIO_STATUS, 0);
    assert_true(interrupted(&b, WAIT_MS)); /* of its being broken */
    bring_up(&b, SIZE);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), LIVE);
    one_request(&b, 0);
    teardown(&b);
}

/* What only the server sees: the driver hears of it, and a reset heals. */
static void test_a_queue_that_the_server_finds_broken(void **state)
{
    static const uint64_t one = 1;
    struct bench b;
    setup(&b);
    for (unsigned i = 0; i < 3; i++) {
        bring_up(&b, SIZE);
        assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), LIVE);
        fake_publish(&b.f, 0, SIZE + 1);
        assert_int_equal(write(mmio_kick_fd(b.m, 0), &one, sizeof(one)), sizeof(one));
        assert_true(interrupted(&b, WAIT_MS));
        assert_true(rd(&b, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
        wr(&b, VIRTIO_MMIO_STATUS, 0);
        fresh_rings(&b);
    }
    bring_up(&b, SIZE);
    one_request(&b, 0);
    teardown(&b);
}

/* The loop of the front end hears of it in its own time; the driver is interrupted. */
static void expect_broken(struct bench *b, const char *why)
{
    assert_true(interrupted(b, WAIT_MS));
    assert_true(rd(b, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
    assert_true(rd(b, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_CONFIG);
    wr(b, VIRTIO_MMIO_STATUS, 0); /* does not hang */
    assert_non_null(b->seen.broken);
    assert_non_null(strstr(b->seen.broken, why));
    fresh_rings(b);
    bring_up(b, SIZE); /* nor does it heal */
    assert_true(rd(b, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
}

static void test_a_server_that_dies(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b, SIZE);
    one_request(&b, 0);
    runner_stop(&b.back);
    vhost_user_free(b.v);
    b.v = NULL;
    expect_broken(&b, "is gone");
    teardown(&b);
}

/* --- servers of the test's own ---------------------------------------------------------------- */

struct answer {
    uint32_t request, flags, size;
    uint8_t payload[128];
};

struct liar {
    int fd;
    const struct answer *answer;
    unsigned n;
};

static void say(int fd, const struct answer *a)
{
    uint32_t h[3] = {a->request, a->flags, a->size};
    size_t n = MIN(a->size, (uint32_t)sizeof(a->payload));
    assert_int_equal(send(fd, h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
    if (n > 0)
        assert_int_equal(send(fd, a->payload, n, MSG_NOSIGNAL), n);
}

/* All answers at once: they are read when they are asked for. */
static int with_answers(struct bench *b, const struct answer *a, unsigned n)
{
    int sock[2];
    begin(b, sock);
    for (unsigned i = 0; i < n; i++)
        say(sock[1], &a[i]);
    assert_int_equal(shutdown(sock[1], SHUT_WR), 0);
    int r = front_end(b, sock[0]);
    if (r < 0)
        close_fd(&sock[0]);
    b->server_fd = sock[1];
    return r;
}

enum { REPLY = F_VERSION | F_REPLY, CONFIG_SIZE = 12 + 64 };
#define FEATURES(flags)         \
    {                           \
        GET_FEATURES, flags, 8, \
        {                       \
            0, 0, 0, 0x70, 1    \
        }                       \
    }
#define PROTOCOL                         \
    {                                    \
        GET_PROTOCOL_FEATURES, REPLY, 8, \
        {                                \
            0, 2                         \
        }                                \
    }

static void test_servers_that_are_not_understood(void **state)
{
    static const struct {
        unsigned n;
        struct answer a[3];
    } bad[] = {
        {0, {{0}}},
        {1, {FEATURES(F_VERSION)}},                                    /* a request, not a reply */
        {1, {FEATURES(F_REPLY)}},                                      /* of another version */
        {1, {{GET_FEATURES, REPLY, 4, {0}}}},                          /* short */
        {1, {{GET_FEATURES, REPLY, 100000, {0}}}},                     /* longer than anything is */
        {1, {{GET_CONFIG, REPLY, 8, {0}}}},                            /* to another question */
        {2, {{GET_FEATURES, REPLY, 8, {0, 0, 0, 0x30, 1}}, PROTOCOL}}, /* no protocol features */
        {2, {FEATURES(REPLY), {GET_PROTOCOL_FEATURES, REPLY, 8, {1}}}}, /* no configuration */
        {3, {FEATURES(REPLY), PROTOCOL, {GET_CONFIG, REPLY, 0, {0}}}},  /* "error" */
        {3, {FEATURES(REPLY), PROTOCOL, {GET_CONFIG, REPLY, CONFIG_SIZE + 1, {0}}}},
    };
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct bench b;
        assert_int_equal(with_answers(&b, bad[i].a, bad[i].n), -EPROTO);
        teardown(&b);
    }
}

/* One that answers at first, and then only when the test says so. */
static void setup_liar(struct bench *b)
{
    static const struct answer good[] = {
        FEATURES(REPLY), PROTOCOL, {GET_CONFIG, REPLY, CONFIG_SIZE, {0}}};
    int sock[2];
    begin(b, sock);
    for (unsigned i = 0; i < ARRAY_LEN(good); i++)
        say(sock[1], &good[i]);
    b->server_fd = sock[1];
    assert_int_equal(front_end(b, sock[0]), 0);
    assert_int_equal(mmio_new(&b->m, &b->front.loop, b->dev, &b->f.mem, b->page, &events, &b->seen),
                     0);
    runner_start(&b->front);
}

static void test_a_server_that_speaks_out_of_turn(void **state)
{
    static const struct answer a = FEATURES(REPLY);
    struct bench b;
    setup_liar(&b);
    bring_up(&b, SIZE);
    say(b.server_fd, &a);
    expect_broken(&b, "an unexpected message");
    teardown(&b);
}

static void *write_reset(void *arg)
{
    wr((struct bench *)arg, VIRTIO_MMIO_STATUS, 0);
    return NULL;
}

/* A virtual CPU resets a device whose server does not answer. It waits, or is about to: either way
 * it must come back. */
static pthread_t begin_reset(struct bench *b)
{
    pthread_t cpu;
    setup_liar(b);
    bring_up(b, SIZE);
    assert_int_equal(pthread_create(&cpu, NULL, write_reset, b), 0);
    (void)usleep(20000);
    return cpu;
}

static void test_a_server_that_dies_during_a_reset(void **state)
{
    struct bench b;
    pthread_t cpu = begin_reset(&b);
    close_fd(&b.server_fd);
    assert_int_equal(pthread_join(cpu, NULL), 0);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS) & LIVE, 0);
    teardown(&b);
}

static void test_the_end_of_the_guest_ends_the_wait(void **state)
{
    struct bench b;
    pthread_t cpu = begin_reset(&b);
    mmio_cancel(b.m);
    assert_int_equal(pthread_join(cpu, NULL), 0);
    teardown(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_and_configuration_are_the_servers),
        cmocka_unit_test(test_requests_go_straight_through),
        cmocka_unit_test(test_a_reset_waits_for_the_server),
        cmocka_unit_test(test_nonsense_breaks_the_device_and_not_the_server),
        cmocka_unit_test(test_a_queue_that_the_server_finds_broken),
        cmocka_unit_test(test_a_server_that_dies),
        cmocka_unit_test(test_servers_that_are_not_understood),
        cmocka_unit_test(test_a_server_that_speaks_out_of_turn),
        cmocka_unit_test(test_a_server_that_dies_during_a_reset),
        cmocka_unit_test(test_the_end_of_the_guest_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
