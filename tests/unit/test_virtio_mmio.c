/* The register machine of virtio-mmio: a driver that does it right, one that does not, and several
 * threads at once. The device behind it is one of the test's own; its loop runs on a thread, as in
 * the monitor, so that this file is also what ThreadSanitizer looks at. */
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mmio_bench.h"
#include "unit.h"
#include "util/cleanup.h"

enum { QUEUES = 2, SIZE = 16, THREADS = 4, ROUNDS = 300 };

/* --- a device -------------------------------------------------------------------------------- */

struct dev {
    struct virtio_dev dev; /* first: the ops get at the rest by it */
    uint8_t config[12];
    _Atomic unsigned kicks[QUEUES], resets;
    pthread_t thread; /* that code of the device ran on last */
    uint32_t written_off, written_len;
};

static struct dev *dev_of(struct virtio_dev *d)
{
    return (struct dev *)(void *)d;
}

static int64_t dev_kick(struct virtio_dev *d, unsigned q)
{
    dev_of(d)->thread = pthread_self();
    dev_of(d)->kicks[q]++;
    return VIRTIO_IDLE;
}

static void dev_written(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    struct dev *v = dev_of(d);
    v->thread = pthread_self();
    v->written_off = off;
    v->written_len = len;
    memcpy(v->config + off, p, len);
}

static void dev_reset(struct virtio_dev *d)
{
    dev_of(d)->resets++;
}

static void dev_free(struct virtio_dev *d)
{
}

static const struct virtio_dev_ops ops = {.name = "test",
                                          .id = 42,
                                          .n_queues = QUEUES,
                                          .kick = dev_kick,
                                          .config_written = dev_written,
                                          .reset = dev_reset,
                                          .free = dev_free};

/* --- a machine ------------------------------------------------------------------------------- */

struct bench {
    struct fake f;
    struct dev d;
    struct runner run;
    struct mmio *m;
    uint32_t *page;
    struct seen seen;
};

static void setup(struct bench *b)
{
    *b = (struct bench){0};
    fake_init(&b->f);
    for (unsigned i = 0; i < QUEUES; i++)
        fake_ring(&b->f, i, SIZE);
    b->d.dev = (struct virtio_dev){.ops = &ops,
                                   .features = VIRTIO_BASE_FEATURES | 1,
                                   .config = b->d.config,
                                   .config_len = sizeof(b->d.config)};
    for (unsigned i = 0; i < sizeof(b->d.config); i++)
        b->d.config[i] = (uint8_t)(0xa0 + i);
    b->page = new_page();
    runner_init(&b->run);
    assert_int_equal(
        mmio_new(&b->m, &b->run.loop, &b->d.dev, &b->f.mem, b->page, &events, &b->seen), 0);
    runner_start(&b->run);
}

static void teardown(struct bench *b)
{
    runner_stop(&b->run);
    mmio_free(b->m);
    runner_fini(&b->run);
    free(b->page);
    b->f.dev = NULL;
    fake_fini(&b->f);
}

static uint64_t ignored(struct bench *b)
{
    struct mmio_stats s;
    mmio_stats(b->m, &s);
    return s.ignored;
}

enum {
    ACK = VIRTIO_CONFIG_S_ACKNOWLEDGE,
    DRIVER = VIRTIO_CONFIG_S_DRIVER,
    OK = VIRTIO_CONFIG_S_DRIVER_OK,
    FEATURES_OK = VIRTIO_CONFIG_S_FEATURES_OK,
    NEEDS_RESET = VIRTIO_CONFIG_S_NEEDS_RESET,
    UP_TO_FEATURES = ACK | DRIVER | FEATURES_OK,
    ALL = UP_TO_FEATURES | OK,
};

/* As a driver does it, up to DRIVER_OK. */
static void bring_up(struct bench *b)
{
    wr(b, VIRTIO_MMIO_STATUS, 0);
    wr(b, VIRTIO_MMIO_STATUS, ACK);
    wr(b, VIRTIO_MMIO_STATUS, ACK | DRIVER);
    put_features(b->m, b->d.dev.features);
    wr(b, VIRTIO_MMIO_STATUS, UP_TO_FEATURES);
    for (unsigned i = 0; i < QUEUES; i++)
        put_queue(b->m, i, b->f.q[i].cfg.size, &b->f.q[i].cfg);
    wr(b, VIRTIO_MMIO_STATUS, ALL);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void test_identity(void **state)
{
    struct bench b;
    setup(&b);
    assert_int_equal(rd(&b, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
    assert_int_equal(rd(&b, VIRTIO_MMIO_VERSION), 2);
    assert_int_equal(rd(&b, VIRTIO_MMIO_DEVICE_ID), 42);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), 0);
    uint64_t features = rd(&b, VIRTIO_MMIO_DEVICE_FEATURES);
    wr(&b, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
    features |= (uint64_t)rd(&b, VIRTIO_MMIO_DEVICE_FEATURES) << 32;
    assert_true(features == b.d.dev.features);
    wr(&b, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_int_equal(rd(&b, VIRTIO_MMIO_DEVICE_FEATURES), 0);
    wr(&b, VIRTIO_MMIO_QUEUE_SEL, QUEUES - 1);
    assert_int_equal(rd(&b, VIRTIO_MMIO_QUEUE_NUM_MAX), VIRTQ_SIZE_MAX);
    wr(&b, VIRTIO_MMIO_QUEUE_SEL, QUEUES);
    assert_int_equal(rd(&b, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
    assert_int_equal(rd(&b, VIRTIO_MMIO_QUEUE_READY), 0);
    teardown(&b);
}

static void test_bring_up_and_reset(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ALL);
    assert_int_equal(b.seen.lives, 1);
    assert_int_equal(b.d.kicks[0], 1); /* once, since it was started */
    assert_true(pthread_equal(b.d.thread, b.run.thread));
    assert_true(b.d.dev.acked == b.d.dev.features);
    assert_true(b.d.dev.vq[0].running && b.d.dev.vq[1].running);
    assert_int_equal(ignored(&b), 0);
    wr(&b, VIRTIO_MMIO_STATUS, 0);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), 0);
    assert_int_equal(b.d.resets, 1);
    assert_int_equal(b.seen.lives, 0);
    assert_false(virtio_dev_running(&b.d.dev));
    wr(&b, VIRTIO_MMIO_QUEUE_SEL, 0);
    assert_int_equal(rd(&b, VIRTIO_MMIO_QUEUE_READY), 0);
    bring_up(&b);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ALL);
    teardown(&b);
}

static void test_features_that_were_not_offered(void **state)
{
    struct bench b;
    setup(&b);
    static const uint64_t bad[] = {VIRTIO_BASE_FEATURES | 1ULL << 50, 1 /* no VERSION_1 */};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        wr(&b, VIRTIO_MMIO_STATUS, 0);
        wr(&b, VIRTIO_MMIO_STATUS, ACK | DRIVER);
        put_features(b.m, bad[i]);
        wr(&b, VIRTIO_MMIO_STATUS, UP_TO_FEATURES);
        assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ACK | DRIVER);
        wr(&b, VIRTIO_MMIO_STATUS, ALL); /* pretends not to have seen it */
        assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ACK | DRIVER);
        assert_int_equal(b.seen.lives, 0);
    }
    teardown(&b);
}

static void test_status_bits_stay(void **state)
{
    struct bench b;
    setup(&b);
    wr(&b, VIRTIO_MMIO_STATUS, ACK | DRIVER);
    wr(&b, VIRTIO_MMIO_STATUS, ACK);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ACK | DRIVER);
    wr(&b, VIRTIO_MMIO_STATUS, 0xffffff00); /* bits that do not exist */
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ACK | DRIVER);
    wr(&b, VIRTIO_MMIO_STATUS, OK); /* before features */
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ACK | DRIVER);
    assert_int_equal(ignored(&b), 1);
    teardown(&b);
}

static void test_latched_at_driver_ok(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b);
    struct virtq_config was = b.d.dev.vq[0].cfg;
    static const uint32_t regs[] = {
        VIRTIO_MMIO_QUEUE_NUM,       VIRTIO_MMIO_QUEUE_DESC_LOW,   VIRTIO_MMIO_QUEUE_DESC_HIGH,
        VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_USED_LOW,
        VIRTIO_MMIO_QUEUE_USED_HIGH, VIRTIO_MMIO_QUEUE_READY,      VIRTIO_MMIO_DRIVER_FEATURES,
    };
    wr(&b, VIRTIO_MMIO_QUEUE_SEL, 0);
    for (unsigned i = 0; i < ARRAY_LEN(regs); i++) {
        wr(&b, regs[i], 0);
        assert_int_equal(ignored(&b), i + 1);
    }
    assert_int_equal(rd(&b, VIRTIO_MMIO_QUEUE_READY), 1);
    wr(&b, VIRTIO_MMIO_STATUS, ALL); /* once more: nothing new */
    assert_int_equal(b.d.kicks[0], 1);
    assert_memory_equal(&was, &b.d.dev.vq[0].cfg, sizeof(was));
    assert_true(b.d.dev.acked == b.d.dev.features);
    teardown(&b);
}

static void test_ready_queue_is_latched_too(void **state)
{
    struct bench b;
    setup(&b);
    wr(&b, VIRTIO_MMIO_STATUS, ACK | DRIVER);
    put_queue(b.m, 0, b.f.q[0].cfg.size, &b.f.q[0].cfg);
    wr(&b, VIRTIO_MMIO_QUEUE_NUM, 4);
    assert_int_equal(ignored(&b), 1);
    wr(&b, VIRTIO_MMIO_QUEUE_READY, 0); /* not in use: may be taken back */
    wr(&b, VIRTIO_MMIO_QUEUE_NUM, 4);
    assert_int_equal(ignored(&b), 1);
    teardown(&b);
}

static void test_bad_queues_break_the_device(void **state)
{
    static const uint32_t sizes[] = {0, 3, 0x10000, 0x10010, 2 * VIRTQ_SIZE_MAX, UINT32_MAX};
    static const uint64_t addresses[] = {0, FAKE_GPA + 1, FAKE_GPA + FAKE_RAM - 16,
                                         UINT64_MAX - 15};
    struct bench b;
    setup(&b);
    for (unsigned i = 0; i < ARRAY_LEN(sizes) + ARRAY_LEN(addresses); i++) {
        struct virtq_config c = b.f.q[0].cfg;
        wr(&b, VIRTIO_MMIO_STATUS, 0);
        wr(&b, VIRTIO_MMIO_STATUS, ACK | DRIVER);
        put_features(b.m, b.d.dev.features);
        wr(&b, VIRTIO_MMIO_STATUS, UP_TO_FEATURES);
        if (i >= ARRAY_LEN(sizes))
            c.desc = addresses[i - ARRAY_LEN(sizes)];
        wr(&b, VIRTIO_MMIO_QUEUE_SEL, 0);
        put_queue(b.m, 0, c.size, &c);
        if (i < ARRAY_LEN(sizes)) {
            wr(&b, VIRTIO_MMIO_QUEUE_READY, 0);
            wr(&b, VIRTIO_MMIO_QUEUE_NUM, sizes[i]);
            wr(&b, VIRTIO_MMIO_QUEUE_READY, 1);
        }
        wr(&b, VIRTIO_MMIO_STATUS, ALL);
        assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ALL | NEEDS_RESET);
        assert_false(b.d.dev.vq[0].running);
        assert_int_equal(rd(&b, VIRTIO_MMIO_INTERRUPT_STATUS), VIRTIO_MMIO_INT_CONFIG);
    }
    bring_up(&b); /* a reset heals it */
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ALL);
    runner_stop(&b.run);
    teardown(&b);
    assert_non_null(b.seen.broken);
}

static void test_interrupts(void **state)
{
    struct bench b;
    setup(&b);
    bring_up(&b);
    runner_stop(&b.run);
    b.d.dev.transport->interrupt(b.d.dev.transport, 1);
    uint64_t n;
    assert_int_equal(read(mmio_irq_fd(b.m), &n, sizeof(n)), sizeof(n));
    assert_int_equal(rd(&b, VIRTIO_MMIO_INTERRUPT_STATUS), VIRTIO_MMIO_INT_VRING);
    wr(&b, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_CONFIG);
    assert_int_equal(rd(&b, VIRTIO_MMIO_INTERRUPT_STATUS), VIRTIO_MMIO_INT_VRING);
    wr(&b, VIRTIO_MMIO_INTERRUPT_ACK, UINT32_MAX);
    assert_int_equal(rd(&b, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
    teardown(&b);
}

static void test_kicks(void **state)
{
    struct bench b;
    setup(&b);
    uint64_t one = 1;
    wr(&b, VIRTIO_MMIO_QUEUE_NOTIFY, 0); /* before anything is set up */
    bring_up(&b);
    unsigned before = b.d.kicks[1];
    assert_int_equal(write(mmio_kick_fd(b.m, 1), &one, sizeof(one)), sizeof(one));
    while (b.d.kicks[1] == before)
        (void)usleep(100);
    before = b.d.kicks[0];
    wr(&b, VIRTIO_MMIO_QUEUE_NOTIFY, 0); /* as a host without ioeventfd would see it */
    while (b.d.kicks[0] == before)
        (void)usleep(100);
    wr(&b, VIRTIO_MMIO_QUEUE_NOTIFY, QUEUES);
    assert_int_equal(ignored(&b), 1);
    teardown(&b);
}

static void test_config(void **state)
{
    struct bench b;
    setup(&b);
    for (unsigned len = 1; len <= 8; len *= 2) {
        uint8_t got[8];
        mmio_read(b.m, VIRTIO_MMIO_CONFIG + 1, got, len);
        for (unsigned i = 0; i < len; i++)
            assert_int_equal(got[i], 0xa1 + i);
    }
    assert_int_equal(rd(&b, VIRTIO_MMIO_CONFIG + 12), 0); /* behind it */
    assert_int_equal(rd(&b, MMIO_PAGE - 2), UINT32_MAX);  /* over the edge */
    uint8_t word[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    mmio_write(b.m, VIRTIO_MMIO_CONFIG + 4, word, 8);
    assert_int_equal(b.d.written_off, 4);
    assert_int_equal(b.d.written_len, 8);
    assert_true(pthread_equal(b.d.thread, b.run.thread));
    assert_int_equal(rd(&b, VIRTIO_MMIO_CONFIG + 4), 0x04030201);
    mmio_write(b.m, VIRTIO_MMIO_CONFIG + 5, word, 8); /* its end is outside */
    mmio_write(b.m, VIRTIO_MMIO_CONFIG + 12, word, 1);
    mmio_write(b.m, MMIO_PAGE - 1, word, 4);
    assert_int_equal(ignored(&b), 3);
    teardown(&b);
}

static void test_odd_accesses(void **state)
{
    struct bench b;
    setup(&b);
    uint8_t bytes[8] = {0};
    unsigned n = 0;
    for (unsigned off = 0; off < VIRTIO_MMIO_CONFIG; off++)
        for (unsigned len = 1; len <= 8; len *= 2) {
            if (len == 4 && off % 4 == 0)
                continue;
            mmio_write(b.m, off, bytes, len);
            n++;
        }
    assert_int_equal(ignored(&b), n);
    wr(&b, VIRTIO_MMIO_MAGIC_VALUE, 0); /* for reading */
    wr(&b, 0xf8, 0);                    /* nothing there */
    assert_int_equal(ignored(&b), n + 2);
    assert_int_equal(rd(&b, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
    teardown(&b);
}

static void test_selected_queue_out_of_range(void **state)
{
    struct bench b;
    setup(&b);
    put_queue(b.m, VIRTIO_QUEUES_MAX + 1000, b.f.q[0].cfg.size, &b.f.q[0].cfg);
    assert_int_equal(ignored(&b), 8);
    put_queue(b.m, UINT32_MAX, b.f.q[0].cfg.size, &b.f.q[0].cfg);
    assert_int_equal(ignored(&b), 16);
    teardown(&b);
}

/* --- threads --------------------------------------------------------------------------------- */

static void *driver_main(void *arg)
{
    struct bench *b = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        bring_up(b);
        wr(b, VIRTIO_MMIO_CONFIG, i);
        wr(b, VIRTIO_MMIO_QUEUE_NOTIFY, i % (QUEUES + 1));
        (void)rd(b, VIRTIO_MMIO_STATUS);
    }
    return NULL;
}

/* Whatever several virtual CPUs do to one device at once, it is whole afterwards. */
static void test_many_drivers(void **state)
{
    struct bench b;
    pthread_t t[THREADS];
    setup(&b);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, driver_main, &b), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    wr(&b, VIRTIO_MMIO_STATUS, 0);
    assert_int_equal(b.seen.lives, 0);
    bring_up(&b);
    assert_int_equal(rd(&b, VIRTIO_MMIO_STATUS), ALL);
    teardown(&b);
}

/* A loop that does not answer: who waits for it is set free by the end of the guest. */
static void test_cancel(void **state)
{
    struct bench b;
    pthread_t t[THREADS];
    setup(&b);
    bring_up(&b);
    runner_stop(&b.run);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, driver_main, &b), 0);
    (void)usleep(10000);
    mmio_cancel(b.m);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    runner_start(&b.run); /* what was asked for last is done now, or is not: neither hurts */
    teardown(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_bring_up_and_reset),
        cmocka_unit_test(test_features_that_were_not_offered),
        cmocka_unit_test(test_status_bits_stay),
        cmocka_unit_test(test_latched_at_driver_ok),
        cmocka_unit_test(test_ready_queue_is_latched_too),
        cmocka_unit_test(test_bad_queues_break_the_device),
        cmocka_unit_test(test_interrupts),
        cmocka_unit_test(test_kicks),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_odd_accesses),
        cmocka_unit_test(test_selected_queue_out_of_range),
        cmocka_unit_test(test_many_drivers),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests_name("virtio-mmio", tests, NULL, NULL);
}
