/* The queue against drivers that lie. Numbers in names are those of the list of attacks that every
 * device is tested against. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "unit.h"

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
    x->f.q[0].cfg.desc = fake_alloc(&x->f, 16 * (SIZE + 1), 16); /* one more than it has */
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

static const char out_of_range[] = "queue: descriptor index out of range";
static const char loops[] = "queue: chain loops or is longer than its table";
static const char too_long[] = "queue: chain is too long";
static const char not_negotiated[] = "queue: indirect descriptor was not negotiated";
static const char nested[] = "queue: indirect table inside an indirect table";
static const char successor[] = "queue: indirect descriptor with a successor";
static const char bad_table[] = "queue: bad length of an indirect table";
static const char table_outside[] = "queue: indirect table outside guest memory";
static const char empty[] = "queue: empty descriptor";
static const char buf_outside[] = "queue: buffer outside guest memory";
static const char mixed[] = "queue: readable descriptor after a writable one";

/* Publishes `head`; the queue must break, for that reason and no other. Then starts afresh. */
static void breaks(struct fix *x, uint16_t head, const char *why)
{
    fake_publish(&x->f, 0, head);
    assert_int_equal(virtq_pop(&x->q, &x->c), -EPROTO);
    assert_string_equal(x->q.broken, why);
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

static void test_a_chain_is_read_again(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    struct fake_buf b[] = {{x->buf, 6, false}, {x->buf + 128, 7, true}};
    assert_int_equal(virtq_again(&x->q, 0, &x->c), 0); /* nothing is in our hands */
    uint16_t head = fake_add(f, 0, b, 2);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    x->c = (struct virtq_chain){0};
    assert_int_equal(virtq_again(&x->q, head, &x->c), 1);
    assert_int_equal(x->c.head, head);
    assert_int_equal(x->c.out_len, 6);
    assert_int_equal(x->c.in_len, 7);
    virtq_push(&x->q, &x->c, 7);
    assert_int_equal(virtq_again(&x->q, head, &x->c), 0);
    /* What the driver makes of it in between is checked like any other. */
    (void)fake_add(f, 0, b, 2);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    fake_desc(f, 0, x->c.head, 1ULL << 60, 6, 0, 0);
    assert_int_equal(virtq_again(&x->q, x->c.head, &x->c), -EPROTO);
    assert_string_equal(x->q.broken, "queue: buffer outside guest memory");
    assert_int_equal(virtq_again(&x->q, SIZE, &x->c), -EPROTO);
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

/* One more chain goes through the queue. */
static void serve_one(struct fix *x)
{
    struct fake_buf b = {x->buf, 8, true};
    fake_add(&x->f, 0, &b, 1);
    assert_int_equal(virtq_pop(&x->q, &x->c), 1);
    virtq_push(&x->q, &x->c, 0);
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
    serve_one(x);                        /* index 1 */
    assert_true(virtq_should_interrupt(&x->q));
    serve_one(x); /* 2: already past */
    assert_false(virtq_should_interrupt(&x->q));
    *fake_used_event(f, 0) = 5;
    for (int i = 3; i < 5; i++) {
        serve_one(x);
        assert_false(virtq_should_interrupt(&x->q));
    }
    serve_one(x); /* 5 */
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
    serve_one(x);
    assert_true(virtq_should_interrupt(&x->q));
    *fake_avail_flags(f, 0) = 1;
    serve_one(x);
    assert_false(virtq_should_interrupt(&x->q));
}

/* Behind the table is a descriptor that looks fine: only the index tells. */
static void plant_behind(struct fix *x, uint64_t table, uint16_t n)
{
    fake_table(&x->f, table, n, x->buf, 8, 0, 0);
}

static void test_h01_head_out_of_range(void **state)
{
    struct fix *x = *state;
    plant_behind(x, x->f.q[0].cfg.desc, SIZE);
    breaks(x, SIZE, out_of_range);
    breaks(x, 0xffff, out_of_range);
}

static void test_h02_next_out_of_range(void **state)
{
    struct fix *x = *state;
    plant_behind(x, x->f.q[0].cfg.desc, SIZE);
    fake_desc(&x->f, 0, 0, x->buf, 8, D_NEXT, SIZE);
    breaks(x, 0, out_of_range);
    fake_desc(&x->f, 0, 0, x->buf, 8, D_NEXT, 0xffff);
    breaks(x, 0, out_of_range);
    uint64_t table = fake_alloc(&x->f, 48, 16);
    plant_behind(x, table, 2);
    fake_table(&x->f, table, 0, x->buf, 8, D_NEXT, 2); /* inside an indirect table */
    fake_desc(&x->f, 0, 0, table, 32, D_INDIRECT, 0);
    breaks(x, 0, out_of_range);
}

static void test_h03_descriptor_loops(void **state)
{
    struct fix *x = *state;
    struct fake *f = &x->f;
    fake_desc(f, 0, 0, x->buf, 8, D_NEXT, 0); /* itself */
    breaks(x, 0, loops);
    fake_desc(f, 0, 0, x->buf, 8, D_NEXT, 1); /* two of them */
    fake_desc(f, 0, 1, x->buf, 8, D_NEXT, 0);
    breaks(x, 0, loops);
    for (uint16_t i = 0; i < SIZE; i++) /* longer than the queue, by closing the ring */
        fake_desc(f, 0, i, x->buf, 8, D_NEXT, (uint16_t)((i + 1) % SIZE));
    breaks(x, 0, loops);
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
    breaks(x, 0, loops);
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
        breaks(x, 0, bad_table);
    }
    fake_table(f, table, 0, table, 16, D_INDIRECT, 0); /* indirect in indirect, and in itself */
    fake_desc(f, 0, 0, table, 16, D_INDIRECT, 0);
    breaks(x, 0, nested);
    fake_table(f, table, 0, x->buf, 8, 0, 0);
    fake_desc(f, 0, 0, table, 16, D_INDIRECT | D_NEXT, 1);
    breaks(x, 0, successor);
    fake_desc(f, 0, 0, FAKE_GPA + FAKE_RAM - 16, 32, D_INDIRECT, 0); /* over the end of RAM */
    breaks(x, 0, table_outside);
    fake_desc(f, 0, 0, UINT64_MAX - 7, 16, D_INDIRECT, 0);
    breaks(x, 0, table_outside);
    f->q[0].cfg.indirect = false; /* not negotiated */
    assert_int_equal(virtq_start(&x->q, &f->mem, &f->q[0].cfg, NULL), 0);
    fake_desc(f, 0, 0, table, 16, D_INDIRECT, 0);
    breaks(x, 0, not_negotiated);
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
    breaks(x, 0, too_long);
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
        breaks(x, 0, bad[i].len == 0 ? empty : buf_outside);
        fake_desc(&x->f, 0, 0, bad[i].addr, bad[i].len, D_WRITE, 0);
        breaks(x, 0, bad[i].len == 0 ? empty : buf_outside);
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
    c.avail = c.used = c.desc; /* all in one place: nonsense, but harmless */
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
    breaks(x, 0, mixed);
}

/* --- a second virtual CPU that rewrites descriptors while they are walked -------------------- */

struct flipper {
    uint64_t *word;
    uint64_t good, bad;
    bool stop;
};

static void *flip(void *arg)
{
    struct flipper *p = arg;
    while (!__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
        __atomic_store_n(p->word, p->good, __ATOMIC_RELAXED);
        __atomic_store_n(p->word, p->bad, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* One half of the descriptor at `at` flips between two values while chains are popped. */
static void pop_while_flipping(struct fix *x, uint64_t at, uint64_t good, uint64_t bad)
{
    struct flipper p = {.word = fake_ptr(&x->f, at), .good = good, .bad = bad};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, flip, &p), 0);
    for (unsigned i = 0; i < 60000; i++) {
        fake_set_avail_idx(&x->f, 0, (uint16_t)(x->q.next_avail + 1));
        if (virtq_pop(&x->q, &x->c) <= 0) {
            fake_set_avail_idx(&x->f, 0, 0);
            assert_int_equal(virtq_start(&x->q, &x->f.mem, &x->f.q[0].cfg, NULL), 0);
            continue;
        }
        /* Whatever was accepted lies inside RAM. */
        for (unsigned k = 0; k < x->c.n_out + x->c.n_in; k++) {
            size_t off = (size_t)((uint8_t *)x->c.iov[k].iov_base - x->f.ram);
            assert_true(off < FAKE_RAM && x->c.iov[k].iov_len > 0 &&
                        x->c.iov[k].iov_len <= FAKE_RAM - off);
        }
    }
    __atomic_store_n(&p.stop, true, __ATOMIC_RELAXED);
    (void)pthread_join(t, NULL);
    __atomic_store_n(p.word, good, __ATOMIC_RELAXED);
}

/* The second half of a descriptor as one word. */
static uint64_t tail_of(uint32_t len, uint16_t flags, uint16_t next)
{
    return len | (uint64_t)flags << 32 | (uint64_t)next << 48;
}

static void test_h10_descriptors_flip_while_walked(void **state)
{
    struct fix *x = *state;
    uint64_t table = fake_alloc(&x->f, 64, 16);
    const uint64_t at[] = {x->f.q[0].cfg.desc, table}; /* in the ring, in an indirect table */
    for (unsigned i = 0; i < 2; i++) {
        fake_table(&x->f, at[i], 0, x->buf, 16, 0, 0);
        if (i == 1)
            fake_desc(&x->f, 0, 0, table, 16, D_INDIRECT, 0);
        uint64_t good = tail_of(16, 0, 0);
        pop_while_flipping(x, at[i], x->buf, FAKE_GPA + FAKE_RAM - 8);
        pop_while_flipping(x, at[i] + 8, good, tail_of(0xfffffff0, 0, 0));
        pop_while_flipping(x, at[i] + 8, good, tail_of(0, 0, 0));
        pop_while_flipping(x, at[i] + 8, good, tail_of(16, D_NEXT, 0xffff));
        pop_while_flipping(x, at[i] + 8, good, tail_of(16, D_INDIRECT, 0));
    }
    /* The length of the indirect table itself. */
    pop_while_flipping(x, at[0] + 8, tail_of(16, D_INDIRECT, 0),
                       tail_of(0xfffffff0, D_INDIRECT, 0));
    pop_while_flipping(x, at[0], table, FAKE_GPA + FAKE_RAM - 8);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_good_chains),
        T(test_a_chain_is_read_again),
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
