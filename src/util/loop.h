/* The event loop: epoll, timers on CLOCK_MONOTONIC (clock steps do not matter), one thread.
 *
 * A source is embedded in its owner, so registering allocates nothing. A handler may remove any
 * source, its own included: events already fetched for a removed source are dropped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

enum { LOOP_BATCH = 32 };

struct loop_src;
typedef void (*loop_fn)(struct loop_src *src, uint32_t events);

struct loop_src {
    int fd;          /* -1 when not registered; not owned */
    uint32_t events; /* currently armed */
    loop_fn fn;
};

struct loop_timer {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0 = off */
    void (*fn)(struct loop_timer *t);
    struct loop_timer *next;
};

struct loop {
    int epfd;
    bool stop;
    struct loop_timer *timers; /* sorted by at_ns */
    struct epoll_event batch[LOOP_BATCH];
    int nbatch;
};

int loop_init(struct loop *l);
void loop_fini(struct loop *l);

/* The caller sets src->fd and src->fn before. */
int loop_add(struct loop *l, struct loop_src *src, uint32_t events);
int loop_mod(struct loop *l, struct loop_src *src, uint32_t events);
void loop_del(struct loop *l, struct loop_src *src);
/* Like loop_del, and closes the descriptor. */
void loop_close(struct loop *l, struct loop_src *src);

/* (Re)arms a timer; delay 0 fires on the next turn. */
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t delay_ns);
/* The same, but does not push back a timer that fires sooner. */
void loop_timer_by(struct loop *l, struct loop_timer *t, uint64_t delay_ns);
void loop_timer_off(struct loop *l, struct loop_timer *t);

/* Runs until loop_stop(); returns 0, or -errno if epoll itself failed. */
int loop_run(struct loop *l);
/* One turn; timeout_ms as for epoll_wait, cut to the next timer. */
int loop_turn(struct loop *l, int timeout_ms);
static inline void loop_stop(struct loop *l)
{
    l->stop = true;
}

uint64_t now_ns(void);      /* CLOCK_MONOTONIC */
uint64_t realtime_ns(void); /* CLOCK_REALTIME: for records, never for waiting */
void sleep_ms(uint64_t ms); /* or until a signal comes */

/* For code without a loop: waits until fd is readable or has ended, and returns whether it is.
 * Checks once even if that time (of now_ns) has passed. */
bool wait_readable(int fd, uint64_t until_ns);

/* Through void *: the member lies inside the type, so the alignment is right. */
#define CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(ptr) - __builtin_offsetof(type, member)))
