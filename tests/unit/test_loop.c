/* The event loop: sources that go while their events are at hand, timers in order. */
#include "unit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <stdint.h>
#include <sys/eventfd.h>

enum { SOURCES = 4 };

struct ear {
    struct loop_src src;
    struct fix *x;
    unsigned heard;
    uint32_t events;
    int removes; /* the source that its handler removes; -1 = none */
};

struct fix {
    struct loop loop;
    struct ear ear[SOURCES];
    struct loop_timer timer[3];
    unsigned fired[3];
    unsigned order[8];
    unsigned n_fired;
};

static struct fix *the_fix;

static void on_event(struct loop_src *src, uint32_t events)
{
    struct ear *e = CONTAINER_OF(src, struct ear, src);
    e->heard++;
    e->events = events;
    if (e->removes >= 0)
        loop_del(&e->x->loop, &e->x->ear[e->removes].src);
}

static void on_timer(struct loop_timer *t)
{
    size_t i = (size_t)(t - the_fix->timer);
    the_fix->fired[i]++;
    the_fix->order[the_fix->n_fired++ % 8] = (unsigned)i;
}

static int setup(void **state)
{
    struct fix *x = calloc(1, sizeof(*x));
    assert_int_equal(loop_init(&x->loop), 0);
    for (int i = 0; i < SOURCES; i++) {
        x->ear[i] = (struct ear){.x = x, .removes = -1};
        x->ear[i].src = (struct loop_src){.fd = eventfd(0, EFD_NONBLOCK), .fn = on_event};
        assert_int_equal(loop_add(&x->loop, &x->ear[i].src, EPOLLIN), 0);
    }
    for (int i = 0; i < 3; i++)
        x->timer[i].fn = on_timer;
    the_fix = x;
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fix *x = *state;
    for (int i = 0; i < SOURCES; i++)
        close_fd(&x->ear[i].src.fd);
    loop_fini(&x->loop);
    free(x);
    return 0;
}

static void ring(struct fix *x, int i)
{
    assert_int_equal(eventfd_write(x->ear[i].src.fd, 1), 0);
}

static void turn(struct fix *x)
{
    assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void test_events_reach_their_source(void **state)
{
    struct fix *x = *state;
    ring(x, 1);
    turn(x);
    for (int i = 0; i < SOURCES; i++)
        assert_int_equal(x->ear[i].heard, i == 1);
    assert_int_equal(x->ear[1].events, EPOLLIN);
}

static void test_paused_source_is_silent(void **state)
{
    struct fix *x = *state;
    assert_int_equal(loop_mod(&x->loop, &x->ear[0].src, 0), 0);
    ring(x, 0);
    turn(x);
    assert_int_equal(x->ear[0].heard, 0);
    assert_int_equal(loop_mod(&x->loop, &x->ear[0].src, EPOLLIN), 0);
    turn(x);
    assert_int_equal(x->ear[0].heard, 1);
}

/* All have events in one batch, and each handler removes another source: of two that remove each
 * other, one is never called. */
static void test_removed_source_gets_no_event(void **state)
{
    struct fix *x = *state;
    int fds[SOURCES];
    for (int i = 0; i < SOURCES; i++) {
        x->ear[i].removes = i ^ 1;
        fds[i] = x->ear[i].src.fd;
        ring(x, i);
    }
    turn(x);
    assert_int_equal(x->ear[0].heard + x->ear[1].heard, 1);
    assert_int_equal(x->ear[2].heard + x->ear[3].heard, 1);
    for (int i = 0; i < SOURCES; i++) {
        assert_int_equal(x->ear[i].src.fd >= 0, x->ear[i].heard);
        x->ear[i].src.fd = fds[i]; /* for the teardown */
    }
}

static void test_source_may_remove_itself(void **state)
{
    struct fix *x = *state;
    int fd = x->ear[2].src.fd;
    x->ear[2].removes = 2;
    ring(x, 2);
    turn(x);
    turn(x);
    assert_int_equal(x->ear[2].heard, 1);
    assert_int_equal(x->ear[2].src.fd, -1);
    loop_del(&x->loop, &x->ear[2].src); /* twice does no harm */
    x->ear[2].src.fd = fd;
}

static void test_timers_fire_in_order(void **state)
{
    struct fix *x = *state;
    loop_timer_set(&x->loop, &x->timer[2], 2000000);
    loop_timer_set(&x->loop, &x->timer[0], 1000000);
    loop_timer_set(&x->loop, &x->timer[1], 0);
    for (int i = 0; i < 100 && x->n_fired < 3; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    assert_int_equal(x->n_fired, 3);
    assert_int_equal(x->order[0], 1);
    assert_int_equal(x->order[1], 0);
    assert_int_equal(x->order[2], 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(x->timer[i].at_ns, 0);
    turn(x);
    assert_int_equal(x->n_fired, 3);
}

static void test_timer_is_put_off_and_turned_off(void **state)
{
    struct fix *x = *state;
    loop_timer_set(&x->loop, &x->timer[0], 0);
    loop_timer_set(&x->loop, &x->timer[0], 3600ULL * 1000000000); /* replaces */
    loop_timer_set(&x->loop, &x->timer[1], 0);
    loop_timer_off(&x->loop, &x->timer[1]);
    loop_timer_off(&x->loop, &x->timer[2]); /* was never on */
    turn(x);
    assert_int_equal(x->n_fired, 0);
    assert_ptr_equal(x->loop.timers, &x->timer[0]);
    loop_timer_off(&x->loop, &x->timer[0]);
    assert_null(x->loop.timers);
}

static void test_wait_ends_with_the_next_timer(void **state)
{
    struct fix *x = *state;
    uint64_t before = now_ns();
    loop_timer_set(&x->loop, &x->timer[0], 5000000);
    assert_int_equal(loop_turn(&x->loop, 60000), 0);
    assert_int_equal(x->fired[0], 1);
    assert_true(now_ns() - before >= 5000000);
    assert_true(now_ns() - before < 30ULL * 1000000000);
}

static void stop_loop(struct loop_timer *t)
{
    loop_stop(&the_fix->loop);
}

static void test_stop(void **state)
{
    struct fix *x = *state;
    x->timer[0].fn = stop_loop;
    loop_timer_set(&x->loop, &x->timer[0], 0);
    assert_int_equal(loop_run(&x->loop), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_events_reach_their_source),     TEST(test_paused_source_is_silent),
        TEST(test_removed_source_gets_no_event),  TEST(test_source_may_remove_itself),
        TEST(test_timers_fire_in_order),          TEST(test_timer_is_put_off_and_turned_off),
        TEST(test_wait_ends_with_the_next_timer), TEST(test_stop),
    };
    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
