/* The balloon: what the guest reports goes, what it must not name stays. */
#include <linux/virtio_balloon.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "fake_driver.h"
#include "unit.h"
#include "virtio/balloon.h"

enum { PAGE = 4096, PAGES = 64, INFLATE = 0, DEFLATE = 1, REPORT = 2 };

/* Beside the fake driver's RAM, which holds the rings, a second region such as guests have. */
#define GPA 0x40000000ULL

struct bench {
    struct fake f;
    struct virtio_dev *dev;
    uint8_t *ram;
};

static void setup(struct bench *b)
{
    fake_init(&b->f);
    b->ram = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(b->ram, MAP_FAILED);
    memset(b->ram, 0x5a, PAGES * PAGE);
    assert_int_equal(guest_mem_add(&b->f.mem, GPA, PAGES * PAGE, b->ram), 0);
    assert_int_equal(virtio_balloon_new(&b->dev), 0);
    fake_attach(&b->f, b->dev, 16, 0);
}

static void teardown(struct bench *b)
{
    fake_fini(&b->f);
    virtio_dev_free(b->dev);
    (void)munmap(b->ram, PAGES * PAGE);
}

static struct balloon_stats stats(struct bench *b)
{
    struct balloon_stats s;
    virtio_balloon_stats(b->dev, &s);
    return s;
}

static bool dropped(struct bench *b, unsigned page)
{
    assert_int_equal(b->ram[page * PAGE], b->ram[page * PAGE + PAGE - 1]);
    return b->ram[page * PAGE] == 0;
}

static void test_report(void **state)
{
    struct bench b;
    setup(&b);
    const struct fake_buf v[] = {{GPA + 4 * PAGE, 2 * PAGE, true}, {GPA + 9 * PAGE, PAGE, true}};
    (void)fake_add(&b.f, REPORT, v, 2);
    fake_kick(&b.f, REPORT);
    assert_true(fake_used(&b.f, REPORT, NULL, NULL));
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(dropped(&b, i), i == 4 || i == 5 || i == 9);
    assert_int_equal(stats(&b).reported, 3 * PAGE);
    assert_int_equal(b.f.interrupts[REPORT], 1);
    teardown(&b);
}

/* Parts of pages are not given back: what is beside them is in use. */
static void test_report_unaligned(void **state)
{
    struct bench b;
    setup(&b);
    const struct fake_buf v[] = {{GPA + 100, 3 * PAGE, true}, {GPA + 9 * PAGE + 1, PAGE, true}};
    (void)fake_add(&b.f, REPORT, v, 2);
    fake_kick(&b.f, REPORT);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(dropped(&b, i), i == 1 || i == 2);
    assert_int_equal(stats(&b).refused, 1);
    teardown(&b);
}

/* What the driver only lets us read is no report. */
static void test_report_readable(void **state)
{
    struct bench b;
    setup(&b);
    const struct fake_buf v[] = {{GPA + 4 * PAGE, PAGE, false}};
    (void)fake_add(&b.f, REPORT, v, 1);
    fake_kick(&b.f, REPORT);
    assert_true(fake_used(&b.f, REPORT, NULL, NULL));
    assert_false(dropped(&b, 4));
    teardown(&b);
}

static void inflate(struct bench *b, unsigned queue, const uint32_t *pfn, size_t n)
{
    uint64_t at = fake_alloc(&b->f, n * 4, 4);
    memcpy(fake_ptr(&b->f, at), pfn, n * 4);
    const struct fake_buf v = {at, (uint32_t)(n * 4), false};
    (void)fake_add(&b->f, queue, &v, 1);
    fake_kick(&b->f, queue);
    assert_true(fake_used(&b->f, queue, NULL, NULL));
}

static void test_inflate(void **state)
{
    struct bench b;
    setup(&b);
    uint32_t first = GPA / PAGE;
    const uint32_t pfn[] = {first + 8, first + 7, first + 6, first + 20, first + 21, first + 30};
    inflate(&b, INFLATE, pfn, 6);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(dropped(&b, i), (i >= 6 && i <= 8) || i == 20 || i == 21 || i == 30);
    assert_int_equal(stats(&b).inflated, 6 * PAGE);
    teardown(&b);
}

static void test_inflate_outside(void **state)
{
    struct bench b;
    setup(&b);
    uint32_t first = GPA / PAGE;
    /* Nowhere; wrapping both ways; a run that leaves memory, which loses all of it. */
    const uint32_t pfn[] = {0, UINT32_MAX, UINT32_MAX - 1, first + PAGES - 1, first + PAGES};
    inflate(&b, INFLATE, pfn, 5);
    for (unsigned i = 0; i < PAGES; i++)
        assert_false(dropped(&b, i));
    assert_int_equal(stats(&b).refused, 3);
    inflate(&b, DEFLATE, pfn + 3, 1); /* taking back needs nothing */
    assert_null(b.f.broken);
    teardown(&b);
}

static void test_config(void **state)
{
    struct bench b;
    uint32_t v = 7, target = 1;
    setup(&b);
    assert_int_equal(virtio_dev_config_write(b.dev, 0, &v, 4), 0); /* not the driver's to set */
    virtio_dev_config_read(b.dev, 0, &target, 4);
    assert_int_equal(target, 0);
    assert_int_equal(virtio_dev_config_write(b.dev, 4, &v, 4), 0);
    virtio_dev_config_read(b.dev, 4, &target, 4);
    assert_int_equal(target, 7);
    assert_true(virtio_dev_config_write(b.dev, 8, &v, 4) < 0);
    teardown(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report),          cmocka_unit_test(test_report_unaligned),
        cmocka_unit_test(test_report_readable), cmocka_unit_test(test_inflate),
        cmocka_unit_test(test_inflate_outside), cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests_name("virtio-balloon", tests, NULL, NULL);
}
