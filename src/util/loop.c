#include "util/loop.h"

#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <time.h>

/* #syscalls:monitor,fs,net epoll_ctl epoll_wait epoll_pwait clock_gettime close */

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

uint64_t now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t realtime_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void sleep_ms(uint64_t ms)
{
    const struct timespec t = {.tv_sec = (time_t)(ms / 1000),
                               .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

bool wait_readable(int fd, uint64_t until_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int r;
    do {
        uint64_t now = now_ns();
        uint64_t left = now < until_ns ? (until_ns - now) / 1000000 + 1 : 0;
        r = poll(&p, 1, (int)MIN(left, (uint64_t)INT_MAX));
    } while (r < 0 && errno == EINTR);
    return r > 0;
}

int loop_init(struct loop *l)
{
    *l = (struct loop){.epfd = epoll_create1(EPOLL_CLOEXEC)};
    return l->epfd < 0 ? -errno : 0;
}

void loop_fini(struct loop *l)
{
    close_fd(&l->epfd);
    l->timers = NULL;
}

int loop_add(struct loop *l, struct loop_src *src, uint32_t events)
{
    assert(src->fn);
    struct epoll_event ev = {.events = events, .data.ptr = src};
    src->events = events;
    return epoll_ctl(l->epfd, EPOLL_CTL_ADD, src->fd, &ev) < 0 ? -errno : 0;
}

int loop_mod(struct loop *l, struct loop_src *src, uint32_t events)
{
    if (src->fd < 0 || src->events == events)
        return 0;
    struct epoll_event ev = {.events = events, .data.ptr = src};
    src->events = events;
    return epoll_ctl(l->epfd, EPOLL_CTL_MOD, src->fd, &ev) < 0 ? -errno : 0;
}

void loop_del(struct loop *l, struct loop_src *src)
{
    if (src->fd >= 0)
        (void)epoll_ctl(l->epfd, EPOLL_CTL_DEL, src->fd, NULL);
    src->fd = -1;
    for (int i = 0; i < l->nbatch; i++)
        if (l->batch[i].data.ptr == src)
            l->batch[i].data.ptr = NULL;
}

void loop_close(struct loop *l, struct loop_src *src)
{
    int fd = src->fd;
    loop_del(l, src);
    close_fd(&fd);
}

void loop_timer_by(struct loop *l, struct loop_timer *t, uint64_t delay_ns)
{
    if (t->at_ns == 0 || t->at_ns > now_ns() + delay_ns)
        loop_timer_set(l, t, delay_ns);
}

void loop_timer_off(struct loop *l, struct loop_timer *t)
{
    for (struct loop_timer **p = &l->timers; *p; p = &(*p)->next)
        if (*p == t) {
            *p = t->next;
            break;
        }
    t->at_ns = 0;
    t->next = NULL;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t delay_ns)
{
    loop_timer_off(l, t);
    t->at_ns = now_ns() + delay_ns;
    struct loop_timer **p = &l->timers;
    while (*p && (*p)->at_ns <= t->at_ns)
        p = &(*p)->next;
    t->next = *p;
    *p = t;
}

static int until_next_timer(const struct loop *l, int timeout_ms)
{
    if (!l->timers)
        return timeout_ms;
    uint64_t now = now_ns();
    uint64_t ms = l->timers->at_ns <= now ? 0 : (l->timers->at_ns - now + 999999) / 1000000;
    if (ms > INT_MAX)
        ms = INT_MAX;
    return timeout_ms < 0 || (int)ms < timeout_ms ? (int)ms : timeout_ms;
}

static void fire_timers(struct loop *l)
{
    if (!l->timers) /* reading the clock is a system call in some guests */
        return;
    uint64_t now = now_ns();
    while (l->timers && l->timers->at_ns <= now) {
        struct loop_timer *t = l->timers;
        loop_timer_off(l, t);
        t->fn(t);
    }
}

int loop_turn(struct loop *l, int timeout_ms)
{
    int n = epoll_wait(l->epfd, l->batch, LOOP_BATCH, until_next_timer(l, timeout_ms));
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    l->nbatch = n;
    for (int i = 0; i < l->nbatch; i++) {
        struct loop_src *src = l->batch[i].data.ptr;
        if (src)
            src->fn(src, l->batch[i].events);
    }
    l->nbatch = 0;
    fire_timers(l);
    return 0;
}

int loop_run(struct loop *l)
{
    while (!l->stop) {
        int r = loop_turn(l, -1);
        if (r < 0)
            return r;
    }
    return 0;
}
