/* A vhost-user front end for tests, with a toy device on the other side. Header only; include it
 * once per test. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "util/cleanup.h"
#include "virtio/rng.h"
#include "virtio/vhost_user.h"

enum {
    GET_FEATURES = 1,
    SET_FEATURES,
    SET_OWNER,
    RESET_OWNER,
    SET_MEM_TABLE,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR,
    SET_VRING_BASE,
    GET_VRING_BASE,
    SET_VRING_KICK,
    SET_VRING_CALL,
    SET_VRING_ERR,
    GET_PROTOCOL_FEATURES,
    SET_PROTOCOL_FEATURES,
    GET_QUEUE_NUM,
    SET_VRING_ENABLE,
    GET_CONFIG = 24,
    SET_CONFIG,
    NEED_REPLY = 8,
    QSIZE = 16,
    /* RAM: gpa and the front end's own address differ, and the file has something before it. */
    RAM_SIZE = 65536,
    RAM_OFFSET = 4096,
    DESC = 0,
    AVAIL = 4096,
    USED = 8192,
    BUF = 12288,
};
#define RAM_GPA 0x40000000ULL
#define RAM_USER 0x7f0000000000ULL

/* A device that fills each buffer with 'z', at most `budget` of them per kick, and has a
 * configuration that can be written. */
struct toy {
    struct virtio_dev dev;
    uint8_t config[24];
    unsigned kicks, served, resets, budget;
    struct virtq_chain c;
};

static inline int64_t toy_kick(struct virtio_dev *d, unsigned queue)
{
    struct toy *t = (struct toy *)d;
    struct virtq *q = &d->vq[queue];
    unsigned n = 0;
    t->kicks++;
    do {
        while (virtio_dev_pop(d, queue, &t->c) > 0) {
            uint32_t len = (uint32_t)virtq_chain_write(&t->c, 0, "zzzzzzzz", 8);
            virtq_push(q, &t->c, len);
            t->served++;
            if (++n == t->budget) {
                virtio_dev_interrupt(d, queue);
                return 0;
            }
        }
    } while (virtq_notify_on(q));
    virtio_dev_interrupt(d, queue);
    return VIRTIO_IDLE;
}
static inline void toy_config(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    memcpy(((struct toy *)d)->config + off, p, len);
}
static inline void toy_reset(struct virtio_dev *d)
{
    ((struct toy *)d)->resets++;
}
static inline void toy_free(struct virtio_dev *d)
{
    free(d);
}
static const struct virtio_dev_ops toy_ops = {.name = "toy",
                                              .id = 0xffff,
                                              .n_queues = 2,
                                              .kick = toy_kick,
                                              .config_written = toy_config,
                                              .reset = toy_reset,
                                              .free = toy_free};

struct fix {
    struct loop loop;
    struct toy *toy;
    struct vhost_user *v;
    int fd; /* the front end's end */
    int mem_fd;
    uint8_t *ram;
    int kick, call;
    uint16_t avail_idx;
    unsigned gone, broken, connected;
    bool free_when_told;
    char reason[128];
};

static inline void on_connected(void *ctx)
{
    ((struct fix *)ctx)->connected++;
}
static inline void on_gone(void *ctx, const char *reason)
{
    struct fix *x = ctx;
    x->gone++;
    (void)strncpy(x->reason, reason, sizeof(x->reason) - 1);
    if (x->free_when_told) {
        vhost_user_free(x->v);
        x->v = NULL;
    }
}
static inline void on_broken(void *ctx, const char *reason)
{
    struct fix *x = ctx;
    x->broken++;
    (void)strncpy(x->reason, reason, sizeof(x->reason) - 1);
    if (x->free_when_told) {
        vhost_user_free(x->v);
        x->v = NULL;
    }
}
static const struct vhost_user_events events = {on_connected, on_gone, on_broken};

static inline int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int fds_before;

static inline int setup(void **state)
{
    struct fix *x = calloc(1, sizeof(*x));
    fds_before = count_fds();
    assert_int_equal(loop_init(&x->loop), 0);
    x->toy = calloc(1, sizeof(*x->toy));
    x->toy->dev.ops = &toy_ops;
    x->toy->dev.features = VIRTIO_BASE_FEATURES;
    x->toy->dev.config = x->toy->config;
    x->toy->dev.config_len = sizeof(x->toy->config);
    x->toy->budget = 64;
    for (uint8_t i = 0; i < 24; i++)
        x->toy->config[i] = (uint8_t)(i + 1);
    int sp[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp), 0);
    x->fd = sp[0];
    assert_int_equal(vhost_user_new_connected(&x->v, &x->loop, &x->toy->dev, sp[1], &events, x), 0);
    x->mem_fd = memfd_create("ram", MFD_CLOEXEC);
    assert_int_equal(ftruncate(x->mem_fd, RAM_OFFSET + RAM_SIZE), 0);
    x->ram = mmap(NULL, RAM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, x->mem_fd, RAM_OFFSET);
    assert_ptr_not_equal(x->ram, MAP_FAILED);
    x->kick = x->call = -1;
    *state = x;
    return 0;
}

static inline int teardown(void **state)
{
    struct fix *x = *state;
    vhost_user_free(x->v);
    virtio_dev_free(&x->toy->dev);
    loop_fini(&x->loop);
    (void)munmap(x->ram, RAM_SIZE);
    close_fd(&x->mem_fd);
    close_fd(&x->fd);
    close_fd(&x->kick);
    close_fd(&x->call);
    free(x);
    return count_fds() == fds_before ? 0 : -1; /* no descriptor leaks, whatever happened */
}

static inline void turn(struct fix *x)
{
    for (int i = 0; i < 8; i++)
        assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static inline void send_with(struct fix *x, uint32_t request, uint32_t flags, uint32_t size,
                             const void *payload, size_t len, const int *fds, unsigned n_fds)
{
    uint8_t b[1024];
    uint32_t h[3] = {request, flags, size};
    memcpy(b, h, 12);
    if (len > 0)
        memcpy(b + 12, payload, len);
    union {
        struct cmsghdr align;
        uint8_t space[CMSG_SPACE(16 * sizeof(int))];
    } control = {0};
    struct iovec iov = {b, 12 + len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    assert_int_equal(sendmsg(x->fd, &m, MSG_NOSIGNAL), (ssize_t)(12 + len));
    turn(x);
}

static inline void msg(struct fix *x, uint32_t request, const void *payload, size_t len, int fd)
{
    send_with(x, request, 1, (uint32_t)len, payload, len, &fd, fd >= 0 ? 1 : 0);
}

static inline void msg_u64(struct fix *x, uint32_t request, uint64_t v, int fd)
{
    msg(x, request, &v, 8, fd);
}

static inline void msg_state(struct fix *x, uint32_t request, uint32_t index, uint32_t num)
{
    uint32_t s[2] = {index, num};
    msg(x, request, s, 8, -1);
}

/* Reads a reply to `request`; the length of its payload. */
static inline uint32_t reply(struct fix *x, uint32_t request, void *payload, size_t max)
{
    uint32_t h[3];
    assert_int_equal(recv(x->fd, h, 12, MSG_DONTWAIT), 12);
    assert_int_equal(h[0], request);
    assert_int_equal(h[1], 5); /* version 1, reply */
    assert_true(h[2] <= max);
    if (h[2] > 0)
        assert_int_equal(recv(x->fd, payload, h[2], MSG_DONTWAIT), h[2]);
    return h[2];
}

static inline uint64_t reply_u64(struct fix *x, uint32_t request)
{
    uint64_t v = 0;
    assert_int_equal(reply(x, request, &v, 8), 8);
    return v;
}

struct region {
    uint64_t gpa, size, user, offset;
};

static inline void mem_table(struct fix *x, const struct region *r, uint32_t n, const int *fds,
                             unsigned n_fds)
{
    uint8_t b[8 + 32 * 16] = {0};
    memcpy(b, &n, 4);
    if (n > 0)
        memcpy(b + 8, r, n * 32UL);
    send_with(x, SET_MEM_TABLE, 1, 8 + 32 * n, b, 8 + 32UL * n, fds, n_fds);
}

static inline void good_mem(struct fix *x)
{
    struct region r = {RAM_GPA, RAM_SIZE, RAM_USER, RAM_OFFSET};
    mem_table(x, &r, 1, &x->mem_fd, 1);
}

static inline void ring_addr(struct fix *x, uint32_t index, uint64_t desc, uint64_t avail,
                             uint64_t used)
{
    struct {
        uint32_t index, flags;
        uint64_t desc, used, avail, log;
    } a = {index, 0, desc, used, avail, 0};
    msg(x, SET_VRING_ADDR, &a, sizeof(a), -1);
}

static inline void negotiate(struct fix *x)
{
    msg(x, SET_OWNER, NULL, 0, -1);
    msg(x, GET_FEATURES, NULL, 0, -1);
    uint64_t f = reply_u64(x, GET_FEATURES);
    assert_int_equal(f, VIRTIO_BASE_FEATURES | 1ULL << 30);
    msg(x, GET_PROTOCOL_FEATURES, NULL, 0, -1);
    assert_int_equal(reply_u64(x, GET_PROTOCOL_FEATURES), 1 << 9);
    msg_u64(x, SET_PROTOCOL_FEATURES, 1 << 9, -1);
    msg_u64(x, SET_FEATURES, f, -1);
}

static inline void new_call(struct fix *x, int *theirs)
{
    int sp[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp), 0);
    close_fd(&x->call);
    x->call = sp[0];
    *theirs = sp[1];
}

/* All of ring 0 but ENABLE. */
static inline void set_up_ring(struct fix *x)
{
    int theirs;
    good_mem(x);
    new_call(x, &theirs);
    x->kick = eventfd(0, EFD_CLOEXEC); /* blocking, as the kernel makes it */
    msg_u64(x, SET_VRING_CALL, 0, theirs);
    close(theirs);
    msg_state(x, SET_VRING_NUM, 0, QSIZE);
    msg_state(x, SET_VRING_BASE, 0, 0);
    ring_addr(x, 0, RAM_USER + DESC, RAM_USER + AVAIL, RAM_USER + USED);
    msg_u64(x, SET_VRING_KICK, 0, x->kick);
}

static inline void start(struct fix *x)
{
    negotiate(x);
    set_up_ring(x);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_int_equal(x->gone, 0);
    assert_true(x->toy->dev.vq[0].running);
}

/* Makes one buffer available, without a kick. */
static inline void add_buffer(struct fix *x, uint16_t head)
{
    struct vring_desc d = {
        .addr = RAM_GPA + BUF + head * 16UL, .len = 8, .flags = VRING_DESC_F_WRITE};
    memcpy(x->ram + DESC + (head % QSIZE) * sizeof(d), &d, sizeof(d));
    memcpy(x->ram + AVAIL + 4 + 2UL * (x->avail_idx % QSIZE), &head, 2);
    x->avail_idx++;
    __atomic_store_n((uint16_t *)(void *)(x->ram + AVAIL + 2), x->avail_idx, __ATOMIC_RELEASE);
}

static inline uint16_t used_idx(struct fix *x)
{
    return __atomic_load_n((uint16_t *)(void *)(x->ram + USED + 2), __ATOMIC_ACQUIRE);
}

static inline void kick(struct fix *x)
{
    uint64_t one = 1;
    assert_int_equal(write(x->kick, &one, 8), 8);
}

/* The message must end the connection. */
static inline void expect_gone(struct fix *x)
{
    turn(x);
    assert_int_equal(x->gone, 1);
    assert_false(virtio_dev_running(&x->toy->dev));
    char c;
    assert_true(recv(x->fd, &c, 1, MSG_DONTWAIT) <= 0);
}
