/* Devices in general (features, configuration space, life cycle), and the rng. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "unit.h"
#include "util/cleanup.h"
#include "virtio/balloon.h"
#include "virtio/blk.h"
#include "virtio/fs.h"
#include "virtio/net.h"
#include "virtio/rng.h"
#include "virtio/vsock.h"

/* --- a device that counts -------------------------------------------------------------------- */

struct counter {
    struct virtio_dev dev;
    uint64_t config[2];
    unsigned kicks, resets, config_writes;
    struct virtq_chain c;
};

static int64_t counter_kick(struct virtio_dev *d, unsigned queue)
{
    struct counter *x = (struct counter *)d;
    x->kicks++;
    while (virtio_dev_pop(d, queue, &x->c) > 0)
        virtq_push(&d->vq[queue], &x->c, 0);
    virtio_dev_interrupt(d, queue);
    return VIRTIO_IDLE;
}
static void counter_config(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    struct counter *x = (struct counter *)d;
    memcpy((uint8_t *)x->config + off, p, len);
    x->config_writes++;
}
static void counter_reset(struct virtio_dev *d)
{
    ((struct counter *)d)->resets++;
}
static void counter_free(struct virtio_dev *d)
{
    free(d);
}
static const struct virtio_dev_ops counter_ops = {
    .name = "counter",
    .id = 0xffff,
    .n_queues = 2,
    .kick = counter_kick,
    .config_written = counter_config,
    .reset = counter_reset,
    .free = counter_free,
};

static struct counter *counter_new(void)
{
    struct counter *x = calloc(1, sizeof(*x));
    x->dev.ops = &counter_ops;
    x->dev.features = VIRTIO_BASE_FEATURES | 1;
    x->dev.config = x->config;
    x->dev.config_len = sizeof(x->config);
    return x;
}

static struct counter *counter_up(struct fake *f)
{
    struct counter *x = counter_new();
    fake_init(f);
    fake_attach(f, &x->dev, 16, 0);
    return x;
}

static void counter_down(struct fake *f, struct counter *x)
{
    fake_fini(f);
    virtio_dev_free(&x->dev);
}

static void test_life_cycle(void **state)
{
    struct fake f;
    struct counter *x = counter_new();
    fake_init(&f);
    fake_kick((f.dev = &x->dev, &f), 0); /* h09: kicked before it was set up */
    assert_int_equal(x->kicks, 0);
    fake_attach(&f, &x->dev, 16, 0);
    assert_int_equal(x->kicks, 2); /* each queue once, when it started */
    assert_true(virtio_dev_running(&x->dev));
    virtio_dev_stop_queue(&x->dev, 0);
    assert_int_equal(x->resets, 0);
    virtio_dev_stop_queue(&x->dev, 1);
    assert_int_equal(x->resets, 1);
    virtio_dev_stop_queue(&x->dev, 1); /* again: nothing */
    assert_int_equal(x->resets, 1);
    fake_kick(&f, 0);
    fake_kick(&f, 99);
    assert_int_equal(x->kicks, 2);
    counter_down(&f, x);
    virtio_dev_free(NULL);
}

static void test_h09_changes_while_running(void **state)
{
    struct fake f;
    struct counter *x = counter_up(&f);
    struct virtq before = x->dev.vq[0];
    uint64_t acked = x->dev.acked;
    struct virtq_config other = f.q[0].cfg;
    other.size = 8;
    other.desc += 64;
    assert_int_equal(virtio_dev_start_queue(&x->dev, 0, &f.mem, &other), -EBUSY);
    assert_int_equal(virtio_dev_set_features(&x->dev, 0), -EBUSY);
    assert_int_equal(x->dev.ignored, 2);
    assert_int_equal(x->dev.acked, acked);
    assert_memory_equal(&x->dev.vq[0], &before, sizeof(before));
    assert_int_equal(virtio_dev_start_queue(&x->dev, 2, &f.mem, &other), -EINVAL);
    assert_int_equal(virtio_dev_start_queue(&x->dev, UINT32_MAX, &f.mem, &other), -EINVAL);
    counter_down(&f, x);
}

static void test_h09_nonsense_breaks_and_reset_heals(void **state)
{
    struct fake f;
    struct counter *x = counter_up(&f);
    virtio_dev_stop_queue(&x->dev, 0);
    struct virtq_config bad = f.q[0].cfg;
    bad.size = 5;
    assert_int_equal(virtio_dev_start_queue(&x->dev, 0, &f.mem, &bad), -EINVAL);
    assert_non_null(x->dev.broken);
    assert_int_equal(f.broken_calls, 1);
    assert_int_equal(virtio_dev_start_queue(&x->dev, 0, &f.mem, &f.q[0].cfg), -EPROTO);
    unsigned kicks = x->kicks;
    fake_kick(&f, 1); /* the other queue is dead too */
    assert_int_equal(x->kicks, kicks);
    virtio_dev_stop_queue(&x->dev, 1);
    assert_null(x->dev.broken);
    assert_int_equal(virtio_dev_start_queue(&x->dev, 0, &f.mem, &f.q[0].cfg), 0);
    counter_down(&f, x);
}

static void test_a_broken_queue_breaks_the_device_once(void **state)
{
    struct fake f;
    struct counter *x = counter_up(&f);
    fake_publish(&f, 0, 999);
    fake_kick(&f, 0);
    fake_kick(&f, 0);
    fake_publish(&f, 1, 999);
    fake_kick(&f, 1);
    assert_int_equal(f.broken_calls, 1);
    assert_string_equal(f.broken, "queue: descriptor index out of range");
    assert_int_equal(f.interrupts[0] + f.interrupts[1], 0);
    counter_down(&f, x);
}

static void test_features(void **state)
{
    struct fake f;
    struct counter *x = counter_new();
    fake_init(&f);
    fake_ring(&f, 0, 16);
    virtio_dev_attach(&x->dev, &f.transport);
    f.transport.broken = NULL;
    assert_int_equal(virtio_dev_set_features(&x->dev, 1ULL << 63), -EINVAL);
    assert_int_equal(virtio_dev_set_features(&x->dev, 2), -EINVAL);
    assert_int_equal(virtio_dev_set_features(&x->dev, VIRTIO_BASE_FEATURES), 0);
    assert_false(virtio_dev_has(&x->dev, 0));
    virtio_dev_detach(&x->dev);
    assert_int_equal(x->dev.acked, 0);
    /* A legacy driver gets no queue. */
    assert_int_equal(virtio_dev_start_queue(&x->dev, 0, &f.mem, &f.q[0].cfg), -EINVAL);
    counter_down(&f, x);
}

static void test_h12_config_space_bounds(void **state)
{
    struct counter *x = counter_new();
    uint8_t *config = malloc(16); /* its own block, for a sanitizer to see its end */
    memset(config, 0xaa, 16);
    x->dev.config = config;
    const uint32_t widths[] = {1, 2, 4, 8};
    for (unsigned w = 0; w < 4; w++)
        for (uint32_t off = 0; off < 32; off++) {
            uint8_t *got = malloc(widths[w]); /* exactly so long: a sanitizer watches the end */
            virtio_dev_config_read(&x->dev, off, got, widths[w]);
            for (uint32_t i = 0; i < widths[w]; i++)
                assert_int_equal(got[i], off + i < 16 ? 0xaa : 0);
            int r = virtio_dev_config_write(&x->dev, off, got, widths[w]);
            assert_int_equal(r, off + widths[w] <= 16 ? 0 : -ERANGE);
            free(got);
        }
    uint8_t b[8];
    const uint32_t far[] = {0x7fffffff, 0xfffffff8, 0xfffffffc, 0xffffffff};
    for (unsigned i = 0; i < 4; i++) {
        memset(b, 1, sizeof(b));
        virtio_dev_config_read(&x->dev, far[i], b, 8);
        assert_int_equal(b[0] | b[7], 0);
        assert_int_equal(virtio_dev_config_write(&x->dev, far[i], b, 8), -ERANGE);
    }
    assert_int_equal(virtio_dev_config_write(&x->dev, 8, b, UINT32_MAX), -ERANGE);
    free(config);
    virtio_dev_free(&x->dev);
}

static void test_every_device_is_sound(void **state)
{
    static const struct virtio_dev_ops *const all[] = {&virtio_balloon_ops, &virtio_blk_ops,
                                                       &virtio_fs_ops,      &virtio_net_ops,
                                                       &virtio_rng_ops,     &virtio_vsock_ops};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        assert_non_null(all[i]->name);
        assert_non_null(all[i]->kick);
        assert_non_null(all[i]->free);
        assert_in_range(all[i]->n_queues, 1, VIRTIO_QUEUES_MAX);
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(all[k]->id, all[i]->id);
    }
}

/* --- rng ------------------------------------------------------------------------------------- */

static void test_rng_fills_buffers(void **state)
{
    struct fake f;
    struct virtio_dev *d;
    fake_init(&f);
    assert_int_equal(virtio_rng_new(&d), 0);
    fake_attach(&f, d, 16, 0);
    uint64_t buf = fake_alloc(&f, 64, 16);
    struct fake_buf b[] = {{buf, 16, true}, {buf + 32, 16, true}};
    fake_add(&f, 0, b, 2);
    fake_kick(&f, 0);
    uint32_t len;
    assert_true(fake_used(&f, 0, NULL, &len));
    assert_int_equal(len, 32);
    static const uint8_t zero[16];
    const uint8_t *p = fake_ptr(&f, buf);
    assert_memory_not_equal(p, zero, 16);
    assert_memory_equal(p + 16, zero, 16);
    assert_memory_not_equal(p + 32, zero, 16);
    fake_fini(&f);
    virtio_dev_free(d);
}

static void test_rng_is_bounded_per_request_and_in_time(void **state)
{
    struct fake f;
    struct virtio_dev *d;
    fake_init(&f);
    assert_int_equal(virtio_rng_new(&d), 0);
    fake_attach(&f, d, 256, 0);
    uint64_t buf = fake_alloc(&f, 65536, 16);
    struct fake_buf big = {buf, 65536, true};
    uint64_t got = 0;
    for (unsigned i = 0; i < 256; i++)
        fake_add(&f, 0, &big, 1);
    fake_kick(&f, 0);
    uint32_t len;
    while (fake_used(&f, 0, NULL, &len)) {
        assert_int_equal(len, RNG_REQUEST_MAX);
        got += len;
    }
    assert_in_range(got, 1, RNG_BURST + RNG_REQUEST_MAX);
    assert_true(f.later[0]);
    assert_true(f.later_ns[0] > 0); /* not at once: that would be a busy loop */
    /* A storm of kicks yields no more than time allows. */
    for (unsigned i = 0; i < 1000; i++)
        fake_kick(&f, 0);
    while (fake_used(&f, 0, NULL, &len))
        got += len;
    assert_true(got < 256ULL * RNG_REQUEST_MAX);
    fake_fini(&f);
    virtio_dev_free(d);
}

static void test_rng_useless_requests_cost_too(void **state)
{
    struct fake f;
    struct virtio_dev *d;
    fake_init(&f);
    assert_int_equal(virtio_rng_new(&d), 0);
    fake_attach(&f, d, 256, 0);
    struct fake_buf out = {fake_alloc(&f, 8, 8), 8, false}; /* nothing to write into */
    unsigned served = 0;
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < 256; i++)
            fake_add(&f, 0, &out, 1);
        fake_kick(&f, 0);
        while (fake_used(&f, 0, NULL, NULL))
            served++;
        if (f.later[0])
            break;
    }
    assert_true(f.later[0]);
    assert_in_range(served, 1, 100 * 256 - 1);
    fake_fini(&f);
    virtio_dev_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_cycle),
        cmocka_unit_test(test_h09_changes_while_running),
        cmocka_unit_test(test_h09_nonsense_breaks_and_reset_heals),
        cmocka_unit_test(test_a_broken_queue_breaks_the_device_once),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_h12_config_space_bounds),
        cmocka_unit_test(test_every_device_is_sound),
        cmocka_unit_test(test_rng_fills_buffers),
        cmocka_unit_test(test_rng_is_bounded_per_request_and_in_time),
        cmocka_unit_test(test_rng_useless_requests_cost_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
