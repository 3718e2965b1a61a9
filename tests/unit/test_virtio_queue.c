/* The queue against drivers that lie. Numbers in names are those of the list of attacks that every
 * device is tested against. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"

enum { SIZE = 16 };

struct fix {
    struct fake f;
    struct virtq q;
    struct virtq_chain c;
    uint64_t buf; /* 4 KiB */
};

static int setup(void **state)
{
    struct fix *x = calloc(1, sizeof(*x));
    fake_init(&x->f);
    fake_ring(&x->f, 0, SIZE);
    x->buf = fake_alloc(&x->f, 4096, 16);
    *state = x;
    return virtq_start(&x->q, &x->f.mem, &x->f.q[0].cfg, NULL);
}

static int teardown(void **state)
{
    struct fix *x = *state;
    fake_fini(&x->f);
    free(x);
    return 0;
}

/* Publishes `head`; the queue must break. Then starts afresh. */
static void breaks_with_head(struct fix *x, uint16_t head)
{
    fake_publish(&x->f, 0, head);
    assert_int_equal(virtq_pop(&x->q, &x->c), -EPROTO);
    assert_non_null(x->q.broken);
    /* Broken for good: nothing moves, whatever is added. */
    uint16_t used = fake_used_idx(&x->f, 0);
    assert_int_equal(virtq_pop(&x->q, &x->c), -EPROTO);
    virtq_push(&x->q, &x->c, 0);
    assert_false(virtq_pending(&x->q));
    assert_false(virtq_notify_on(&x->q));
    assert_false(virtq_should_interrupt(&x->q));
    assert_int_equal(fake_used_idx(&x->f, 0), used);
    fake_set_avail_idx(&x->f, 0, 0);
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &x->f.q[0].cfg, NULL), 0);
}

static void test_good_chains(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    assert_int_equal(virtq_pop(&x->q, &x->c), 0);
    memcpy(fake_ptr(f, x->buf), "header", 6);
    /* More rounds than the queue is long, so that indices wrap in the rings. */
    for (unsigned i = 0; i < 3 * SIZE; i++) {
        struct fake_buf b[] = {
            {x->buf, 6, false}, {x->buf + 64, 10, false}, {x->buf + 128, 7, true}};
        uint16_t head = fake_add(f, 0, b, 3);
        assert_true(virtq_pending(&x->q));
        assert_int_equal(virtq_pop(&x->q, &x->c), 1);
        assert_int_equal(x->c.head, head);
        assert_int_equal(x->c.n_out, 2);
        assert_int_equal(x->c.n_in, 1);
        assert_int_equal(x->c.out_len, 16);
        assert_int_equal(x->c.in_len, 7);
        char h[6];
        assert_int_equal(virtq_chain_read(&x->c, 0, h, 6), 6);
        assert_memory_equal(h, "header", 6);
        assert_int_equal(virtq_chain_write(&x->c, 0, "0123456789", 10), 7);
        virtq_push(&x->q, &x->c, 7);
        uint32_t id, len;
        assert_true(fake_used(f, 0, &id, &len));
        assert_int_equal(id, head);
        assert_int_equal(len, 7);
    }
    assert_int_equal(virtq_pop(&x->q, &x->c), 0);
}

static void test_good_indirect(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    uint64_t table = fake_alloc(f, 16 * VIRTQ_CHAIN_MAX, 1);
    for (uint16_t i = 0; i < VIRTQ_CHAIN_MAX; i++)
        fake_table(f, table, i, x->buf + i, 1, i + 1 < VIRTQ_CHAIN_MAX ? D_NEXT : D_WRITE,
                   (uint16_t)(i + 1));
    fake_desc(f, 0, 0, table, 16 * VIRTQ_CHAIN_MAX, D_INDIRECT, 0);
    fake_publish(f, 0, 0);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    assert_int_equal(x->c.n_out, VIRTQ_CHAIN_MAX - 1);
    assert_int_equal(x->c.n_in, 1);

    /* Direct descriptors may come before one indirect table. */
    fake_table(f, table, 0, x->buf, 5, D_WRITE, 0);
    fake_desc(f, 0, 3, x->buf, 9, D_NEXT, 4);
    fake_desc(f, 0, 4, table, 16, D_INDIRECT, 0);
    fake_publish(f, 0, 3);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    assert_int_equal(x->c.out_len, 9);
    assert_int_equal(x->c.in_len, 5);
}

static void test_event_idx(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    struct fake_buf b = {x->buf, 8, true};

    /* Kicks: the driver may stay silent until our index is passed. */
    assert_false(virtq_notify_on(&x->q));
    assert_int_equal(*fake_avail_event(f, 0), 0);
    fake_add(f, 0, &b, 1);
    assert_true(virtq_notify_on(&x->q)); /* came in before: look again */
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    assert_false(virtq_notify_on(&x->q));
    assert_int_equal(*fake_avail_event(f, 0), 1);

    /* Interrupts: only when the driver's index is passed. */
    *fake_used_event(f, 0) = 1;
    assert_false(virtq_should_interrupt(&x->q)); /* nothing was pushed */
    virtq_push(&x->q, &x->c, 0);
    (void)virtq_should_interrupt(&x->q); /* the first one may come early */
    virtq_push(&x->q, &x->c, 0);         /* index 1 */
    assert_true(virtq_should_interrupt(&x->q));
    virtq_push(&x->q, &x->c, 0); /* 2: already past */
    assert_false(virtq_should_interrupt(&x->q));
    *fake_used_event(f, 0) = 5;
    for (int i = 3; i < 5; i++) {
        virtq_push(&x->q, &x->c, 0);
        assert_false(virtq_should_interrupt(&x->q));
    }
    virtq_push(&x->q, &x->c, 0); /* 5 */
    assert_true(virtq_should_interrupt(&x->q));
    assert_false(virtq_should_interrupt(&x->q));
}

static void test_flags_without_event_idx(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    f->q[0].cfg.event_idx = false;
    assert_int_equal(virtq_start(&x->q, &f->mem, &f->q[0].cfg, NULL), 0);
    virtq_notify_off(&x->q);
    assert_int_equal(*fake_used_flags(f, 0), 1);
    assert_false(virtq_notify_on(&x->q));
    assert_int_equal(*fake_used_flags(f, 0), 0);
    x->c.head = 0;
    virtq_push(&x->q, &x->c, 0);
    assert_true(virtq_should_interrupt(&x->q));
    *fake_avail_flags(f, 0) = 1;
    virtq_push(&x->q, &x->c, 0);
    assert_false(virtq_should_interrupt(&x->q));
}

static void test_h01_head_out_of_range(void **state)
{
    struct fix *x = *state;
    breaks_with_head(x, SIZE);
    breaks_with_head(x, 0xffff);
}

static void test_h02_next_out_of_range(void **state)
{
    struct fix *x = *state;
    fake_desc(&x->f, 0, 0, x->buf, 8, D_NEXT, SIZE);
    breaks_with_head(x, 0);
    fake_desc(&x->f, 0, 0, x->buf, 8, D_NEXT, 0xffff);
    breaks_with_head(x, 0);
    uint64_t table = fake_alloc(&x->f, 32, 16);
    fake_table(&x->f, table, 0, x->buf, 8, D_NEXT, 2); /* inside an indirect table */
    fake_desc(&x->f, 0, 0, table, 32, D_INDIRECT, 0);
    breaks_with_head(x, 0);
}

static void test_h03_descriptor_loops(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    fake_desc(f, 0, 0, x->buf, 8, D_NEXT, 0); /* itself */
    breaks_with_head(x, 0);
    fake_desc(f, 0, 0, x->buf, 8, D_NEXT, 1); /* two of them */
    fake_desc(f, 0, 1, x->buf, 8, D_NEXT, 0);
    breaks_with_head(x, 0);
    for (uint16_t i = 0; i < SIZE; i++) /* longer than the queue, by closing the ring */
        fake_desc(f, 0, i, x->buf, 8, D_NEXT, (uint16_t)((i + 1) % SIZE));
    breaks_with_head(x, 0);
    fake_desc(f, 0, SIZE - 1, x->buf, 8, 0, 0); /* exactly as long as the queue is fine */
    fake_publish(f, 0, 0);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    assert_int_equal(x->c.n_out, SIZE);
}

static void test_h03_loop_in_indirect_table(void **state)
{
    struct fix *x = *state;
    uint64_t table = fake_alloc(&x->f, 64, 16);
    for (uint16_t i = 0; i < 4; i++)
        fake_table(&x->f, table, i, x->buf, 8, D_NEXT | D_WRITE, (uint16_t)((i + 1) % 4));
    fake_desc(&x->f, 0, 0, table, 64, D_INDIRECT, 0);
    breaks_with_head(x, 0);
}

static void test_h04_indirect_abuse(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    uint64_t table = fake_alloc(f, 16 * 1024, 16);
    const uint32_t lens[] = {0, 1, 15, 17, 16 * (VIRTQ_CHAIN_MAX + 1), 0xfffffff0, 0xffffffff};
    fake_table(f, table, 0, x->buf, 8, 0, 0);
    for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        fake_desc(f, 0, 0, table, lens[i], D_INDIRECT, 0);
        breaks_with_head(x, 0);
    }
    fake_table(f, table, 0, table, 16, D_INDIRECT, 0); /* indirect in indirect, and in itself */
    fake_desc(f, 0, 0, table, 16, D_INDIRECT, 0);
    breaks_with_head(x, 0);
    fake_table(f, table, 0, x->buf, 8, 0, 0);
    fake_desc(f, 0, 0, table, 16, D_INDIRECT | D_NEXT, 1);
    breaks_with_head(x, 0);
    fake_desc(f, 0, 0, FAKE_GPA + FAKE_RAM - 16, 32, D_INDIRECT, 0); /* over the end of RAM */
    breaks_with_head(x, 0);
    fake_desc(f, 0, 0, UINT64_MAX - 7, 16, D_INDIRECT, 0);
    breaks_with_head(x, 0);
    f->q[0].cfg.indirect = false; /* not negotiated */
    assert_int_equal(virtq_start(&x->q, &f->mem, &f->q[0].cfg, NULL), 0);
    fake_desc(f, 0, 0, table, 16, D_INDIRECT, 0);
    breaks_with_head(x, 0);
}

static void test_h04_direct_and_indirect_together_stay_bounded(void **state)
{
    struct fix *x = *state;
    uint64_t table = fake_alloc(&x->f, 16 * VIRTQ_CHAIN_MAX, 16);
    for (uint16_t i = 0; i < VIRTQ_CHAIN_MAX; i++)
        fake_table(&x->f, table, i, x->buf, 1, i + 1 < VIRTQ_CHAIN_MAX ? D_NEXT : 0,
                   (uint16_t)(i + 1));
    fake_desc(&x->f, 0, 0, x->buf, 1, D_NEXT, 1);
    fake_desc(&x->f, 0, 1, table, 16 * VIRTQ_CHAIN_MAX, D_INDIRECT, 0);
    breaks_with_head(x, 0);
}

static void test_h05_addresses(void **state)
{
    struct fix *x = *state;
    const struct {
        uint64_t addr;
        uint32_t len;
    } bad[] = {
        {UINT64_MAX, 1},
        {UINT64_MAX - 7, 16},
        {FAKE_GPA + FAKE_RAM - 4, 8}, /* straddles the end */
        {FAKE_GPA - 4, 8},            /* and the start */
        {0, 64},                      /* nothing is there */
        {x->buf, 0},
        {x->buf, 0xffffffff},
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        fake_desc(&x->f, 0, 0, bad[i].addr, bad[i].len, 0, 0);
        breaks_with_head(x, 0);
        fake_desc(&x->f, 0, 0, bad[i].addr, bad[i].len, D_WRITE, 0);
        breaks_with_head(x, 0);
    }
    fake_desc(&x->f, 0, 0, FAKE_GPA + FAKE_RAM - 8, 8, 0, 0); /* up to the last byte is fine */
    fake_publish(&x->f, 0, 0);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
}

static void test_h06_avail_index_jumps(void **state)
{
    struct fix *x = *state;
    fake_desc(&x->f, 0, 0, x->buf, 8, 0, 0);
    const uint16_t jumps[] = {SIZE + 1, 0x8000, 0xffff /* backwards */};
    for (unsigned i = 0; i < 3; i++) {
        fake_set_avail_idx(&x->f, 0, jumps[i]);
        assert_true(virtq_pending(&x->q));
        assert_int_equal(virtq_pop(&x->q, &x->c), -EPROTO);
        fake_set_avail_idx(&x->f, 0, 0);
        assert_int_equal(virtq_start(&x->q, &x->f.mem, &x->f.q[0].cfg, NULL), 0);
    }
    fake_set_avail_idx(&x->f, 0, SIZE); /* a full queue is fine: SIZE times head 0 */
    for (unsigned i = 0; i < SIZE; i++)
        assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    assert_int_equal(virtq_pop(&x->q, &x->c), 0);
}

static void test_h07_queue_sizes(void **state)
{
    struct fix *x = *state;
    const uint16_t bad[] = {0, 3, 17, VIRTQ_SIZE_MAX * 2, 0x8000, 0xffff};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct virtq_config cfg = x->f.q[0].cfg;
        const char *why = NULL;
        cfg.size = bad[i];
        assert_int_equal(virtq_start(&x->q, &x->f.mem, &cfg, &why), -EINVAL);
        assert_non_null(why);
        assert_false(x->q.running);
        assert_int_equal(virtq_pop(&x->q, &x->c), 0);
    }
}

static void test_h08_ring_addresses(void **state)
{
    struct fix *x = *state;
    const struct virtq_config good = x->f.q[0].cfg;
    const uint64_t end = FAKE_GPA + FAKE_RAM;
    const uint64_t outside[] = {0, UINT64_MAX & ~15ULL, end, end - 16, FAKE_GPA - 16};
    for (unsigned i = 0; i < 5; i++) {
        struct virtq_config c = good;
        c.desc = outside[i];
        assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
        c = good;
        c.avail = outside[i];
        assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
        c = good;
        c.used = outside[i];
        assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
    }
    struct virtq_config c = good;
    c.desc += 8;
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
    c = good;
    c.avail += 1;
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
    c = good;
    c.used += 2;
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
    /* The event words count: a ring that ends with RAM has no room for them. */
    c = good;
    c.used = end - (4 + 8 * SIZE);
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), -EINVAL);
    c.event_idx = false;
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), 0);
}

static void test_h08_rings_over_each_other(void **state)
{
    struct fix *x = *state;
    struct virtq_config c = x->f.q[0].cfg;
    c.avail = c.used = c.desc; /* all in one place: nonsense, but nobody is hurt */
    assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), 0);
    for (unsigned i = 0; i < 1000; i++) {
        ((uint8_t *)fake_ptr(&x->f, c.desc))[i % (16 * SIZE)] = (uint8_t)(i * 7);
        if (virtq_pop(&x->q, &x->c) > 0)
            virtq_push(&x->q, &x->c, 1);
        (void)virtq_notify_on(&x->q);
        (void)virtq_should_interrupt(&x->q);
        if (x->q.broken)
            assert_int_equal(virtq_start(&x->q, &x->f.mem, &c, NULL), 0);
    }
}

static void test_h11_readable_after_writable(void **state)
{
    struct fix *x = *state;
    fake_desc(&x->f, 0, 0, x->buf, 8, D_NEXT | D_WRITE, 1);
    fake_desc(&x->f, 0, 1, x->buf, 8, 0, 0);
    breaks_with_head(x, 0);
}

/* --- a second virtual CPU that rewrites descriptors while they are walked -------------------- */

struct flipper {
    struct fake *f;
    uint64_t table, buf;
    bool stop;
};

static void *flip(void *arg)
{
    struct flipper *p = arg;
    /* Field by field, as a hostile guest would: good and bad addresses, lengths, flags, links. */
    uint64_t *addr[2];
    uint32_t *len[2];
    uint32_t *link[2];
    for (int i = 0; i < 2; i++) {
        uint8_t *d = (uint8_t *)fake_ptr(p->f, i ? p->table : p->f->q[0].cfg.desc);
        addr[i] = (uint64_t *)(void *)d;
        len[i] = (uint32_t *)(void *)(d + 8);
        link[i] = (uint32_t *)(void *)(d + 12);
    }
    const uint64_t addrs[] = {p->buf, UINT64_MAX - 3, FAKE_GPA + FAKE_RAM - 2, p->table};
    const uint32_t lens[] = {16, 0xffffffff, 0, 32};
    const uint32_t links[] = {D_INDIRECT, D_NEXT | 0xffffU << 16, D_WRITE, 0};
    for (unsigned i = 0; !__atomic_load_n(&p->stop, __ATOMIC_RELAXED); i++) {
        __atomic_store_n(addr[i & 1], addrs[i >> 1 & 3], __ATOMIC_RELAXED);
        __atomic_store_n(len[i & 1], lens[i >> 3 & 3], __ATOMIC_RELAXED);
        __atomic_store_n(link[i & 1], links[i >> 2 & 3], __ATOMIC_RELAXED);
    }
    return NULL;
}

static void test_h10_descriptors_flip_while_walked(void **state)
{
    struct fix *x = *state;
    struct flipper p = {.f = &x->f, .table = fake_alloc(&x->f, 64, 16), .buf = x->buf};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, flip, &p), 0);
    unsigned ok = 0, bad = 0;
    for (unsigned i = 0; i < 200000; i++) {
        fake_set_avail_idx(&x->f, 0, (uint16_t)(x->q.next_avail + 1));
        int r = virtq_pop(&x->q, &x->c);
        if (r > 0) {
            ok++;
            /* Whatever was accepted must be inside RAM now, and stay as it was checked. */
            for (unsigned k = 0; k < x->c.n_out + x->c.n_in; k++) {
                const uint8_t *b = x->c.iov[k].iov_base;
                assert_true(b >= x->f.ram && x->c.iov[k].iov_len > 0);
                assert_true((size_t)(b - x->f.ram) + x->c.iov[k].iov_len <= FAKE_RAM);
            }
        } else {
            bad++;
            fake_set_avail_idx(&x->f, 0, 0);
            assert_int_equal(virtq_start(&x->q, &x->f.mem, &x->f.q[0].cfg, NULL), 0);
        }
    }
    __atomic_store_n(&p.stop, true, __ATOMIC_RELAXED);
    (void)pthread_join(t, NULL);
    assert_int_equal(ok + bad, 200000);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_good_chains),
        T(test_good_indirect),
        T(test_event_idx),
        T(test_flags_without_event_idx),
        T(test_h01_head_out_of_range),
        T(test_h02_next_out_of_range),
        T(test_h03_descriptor_loops),
        T(test_h03_loop_in_indirect_table),
        T(test_h04_indirect_abuse),
        T(test_h04_direct_and_indirect_together_stay_bounded),
        T(test_h05_addresses),
        T(test_h06_avail_index_jumps),
        T(test_h07_queue_sizes),
        T(test_h08_ring_addresses),
        T(test_h08_rings_over_each_other),
        T(test_h10_descriptors_flip_while_walked),
        T(test_h11_readable_after_writable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
