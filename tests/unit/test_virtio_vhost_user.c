/* The vhost-user back end, over a socket pair: a front end that behaves, and many that do not. */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
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

#include <cmocka.h>

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

static int64_t toy_kick(struct virtio_dev *d, unsigned queue)
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
static void toy_config(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    memcpy(((struct toy *)d)->config + off, p, len);
}
static void toy_reset(struct virtio_dev *d)
{
    ((struct toy *)d)->resets++;
}
static void toy_free(struct virtio_dev *d)
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

static void on_connected(void *ctx)
{
    ((struct fix *)ctx)->connected++;
}
static void on_gone(void *ctx, const char *reason)
{
    struct fix *x = ctx;
    x->gone++;
    (void)strncpy(x->reason, reason, sizeof(x->reason) - 1);
    if (x->free_when_told) {
        vhost_user_free(x->v);
        x->v = NULL;
    }
}
static void on_broken(void *ctx, const char *reason)
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

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int fds_before;

static int setup(void **state)
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

static int teardown(void **state)
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

static void turn(struct fix *x)
{
    for (int i = 0; i < 8; i++)
        assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void send_with(struct fix *x, uint32_t request, uint32_t flags, uint32_t size,
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

static void msg(struct fix *x, uint32_t request, const void *payload, size_t len, int fd)
{
    send_with(x, request, 1, (uint32_t)len, payload, len, &fd, fd >= 0 ? 1 : 0);
}

static void msg_u64(struct fix *x, uint32_t request, uint64_t v, int fd)
{
    msg(x, request, &v, 8, fd);
}

static void msg_state(struct fix *x, uint32_t request, uint32_t index, uint32_t num)
{
    uint32_t s[2] = {index, num};
    msg(x, request, s, 8, -1);
}

/* Reads a reply to `request`; the length of its payload. */
static uint32_t reply(struct fix *x, uint32_t request, void *payload, size_t max)
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

static uint64_t reply_u64(struct fix *x, uint32_t request)
{
    uint64_t v = 0;
    assert_int_equal(reply(x, request, &v, 8), 8);
    return v;
}

struct region {
    uint64_t gpa, size, user, offset;
};

static void mem_table(struct fix *x, const struct region *r, uint32_t n, const int *fds,
                      unsigned n_fds)
{
    uint8_t b[8 + 32 * 16] = {0};
    memcpy(b, &n, 4);
    if (n > 0)
        memcpy(b + 8, r, n * 32UL);
    send_with(x, SET_MEM_TABLE, 1, 8 + 32 * n, b, 8 + 32UL * n, fds, n_fds);
}

static void good_mem(struct fix *x)
{
    struct region r = {RAM_GPA, RAM_SIZE, RAM_USER, RAM_OFFSET};
    mem_table(x, &r, 1, &x->mem_fd, 1);
}

static void ring_addr(struct fix *x, uint32_t index, uint64_t desc, uint64_t avail, uint64_t used)
{
    struct {
        uint32_t index, flags;
        uint64_t desc, used, avail, log;
    } a = {index, 0, desc, used, avail, 0};
    msg(x, SET_VRING_ADDR, &a, sizeof(a), -1);
}

static void negotiate(struct fix *x)
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

static void new_call(struct fix *x, int *theirs)
{
    int sp[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp), 0);
    close_fd(&x->call);
    x->call = sp[0];
    *theirs = sp[1];
}

/* All of ring 0 but ENABLE. */
static void set_up_ring(struct fix *x)
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

static void start(struct fix *x)
{
    negotiate(x);
    set_up_ring(x);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_int_equal(x->gone, 0);
    assert_true(x->toy->dev.vq[0].running);
}

/* Makes one buffer available, without a kick. */
static void add_buffer(struct fix *x, uint16_t head)
{
    struct vring_desc d = {
        .addr = RAM_GPA + BUF + head * 16UL, .len = 8, .flags = VRING_DESC_F_WRITE};
    memcpy(x->ram + DESC + (head % QSIZE) * sizeof(d), &d, sizeof(d));
    memcpy(x->ram + AVAIL + 4 + 2UL * (x->avail_idx % QSIZE), &head, 2);
    x->avail_idx++;
    __atomic_store_n((uint16_t *)(void *)(x->ram + AVAIL + 2), x->avail_idx, __ATOMIC_RELEASE);
}

static uint16_t used_idx(struct fix *x)
{
    return __atomic_load_n((uint16_t *)(void *)(x->ram + USED + 2), __ATOMIC_ACQUIRE);
}

static void kick(struct fix *x)
{
    uint64_t one = 1;
    assert_int_equal(write(x->kick, &one, 8), 8);
}

/* The message must end the connection. */
static void expect_gone(struct fix *x)
{
    turn(x);
    assert_int_equal(x->gone, 1);
    assert_false(virtio_dev_running(&x->toy->dev));
    char c;
    assert_true(recv(x->fd, &c, 1, MSG_DONTWAIT) <= 0);
}

/* --- a good front end ------------------------------------------------------------------------ */

static void test_start_serve_stop(void **state)
{
    struct fix *x = *state;
    start(x);
    assert_int_equal(x->toy->kicks, 1); /* when it started */
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
    assert_memory_equal(x->ram + BUF, "zzzzzzzz", 8);
    uint8_t call[64];
    assert_int_equal(recv(x->call, call, sizeof(call), MSG_DONTWAIT), 8);
    msg_state(x, GET_VRING_BASE, 0, 0);
    uint32_t base[2];
    assert_int_equal(reply(x, GET_VRING_BASE, base, 8), 8);
    assert_int_equal(base[1], 1);
    assert_false(x->toy->dev.vq[0].running);
    assert_int_equal(x->toy->resets, 1);
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1); /* it is stopped */
    msg_state(x, SET_VRING_BASE, 0, 1);
    msg_u64(x, SET_VRING_KICK, 0, x->kick);
    turn(x);
    assert_int_equal(used_idx(x), 2); /* started again, it finds what is there */
    msg_state(x, SET_VRING_ENABLE, 0, 0);
    assert_false(x->toy->dev.vq[0].running);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    add_buffer(x, 2);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 3); /* and goes on where it was */
}

static void test_config(void **state)
{
    struct fix *x = *state;
    negotiate(x);
    uint8_t m[12 + 256] = {0}, r[512];
    uint32_t h[3] = {0, 24, 0};
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 12 + 24, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 36);
    assert_memory_equal(r + 12, x->toy->config, 24);
    h[0] = 20; /* partly outside: zeros */
    h[1] = 8;
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 12 + 8, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 20);
    assert_int_equal(r[12 + 3], 24);
    assert_int_equal(r[12 + 4], 0);
    h[0] = 4;
    h[1] = 2;
    memcpy(m, h, 12);
    m[12] = 77;
    m[13] = 78;
    msg(x, SET_CONFIG, m, 14, -1);
    assert_int_equal(x->toy->config[4], 77);
    assert_int_equal(x->toy->config[5], 78);
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
    assert_int_equal(x->gone, 0);
}

static void test_listener_accepts_one(void **state)
{
    (void)state;
    struct fix y = {0};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct virtio_dev *dev;
    assert_int_equal(loop_init(&y.loop), 0);
    assert_int_equal(virtio_rng_new(&dev), 0);
    int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof(a);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(sa_family_t)), 0); /* autobind */
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(listen(l, 4), 0);
    assert_int_equal(vhost_user_new(&y.v, &y.loop, dev, l, &events, &y), 0);
    int c = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int d = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(c, (struct sockaddr *)&a, len), 0);
    turn(&y);
    assert_int_equal(y.connected, 1);
    assert_true(connect(d, (struct sockaddr *)&a, len) < 0); /* the listener is gone */
    close(c);
    turn(&y);
    assert_int_equal(y.gone, 1);
    vhost_user_free(y.v);
    virtio_dev_free(dev);
    loop_fini(&y.loop);
    close(d);
}

static void test_messages_in_pieces(void **state)
{
    struct fix *x = *state;
    /* Byte by byte; the loop turns in between and nothing blocks. */
    uint8_t m[20] = {SET_FEATURES, 0, 0, 0, 1, 0, 0, 0, 8};
    uint64_t f = VIRTIO_BASE_FEATURES | 1ULL << 30;
    memcpy(m + 12, &f, 8);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(x->toy->dev.acked, 0);
        assert_int_equal(send(x->fd, m + i, 1, 0), 1);
        turn(x);
    }
    assert_int_equal(x->toy->dev.acked, VIRTIO_BASE_FEATURES);
    /* Many at once. */
    uint8_t many[12 * 50] = {0};
    for (int i = 0; i < 50; i++) {
        many[12 * i] = GET_FEATURES;
        many[12 * i + 4] = 1;
    }
    assert_int_equal(send(x->fd, many, sizeof(many), 0), sizeof(many));
    turn(x);
    for (int i = 0; i < 50; i++)
        (void)reply_u64(x, GET_FEATURES);
    assert_int_equal(x->gone, 0);
}

static void test_unknown_requests(void **state)
{
    struct fix *x = *state;
    uint64_t v = 1;
    int fd = eventfd(0, EFD_CLOEXEC);
    msg(x, 999, &v, 8, -1);
    msg(x, 0, NULL, 0, -1);
    msg(x, 7, &v, 8, fd); /* with a descriptor, which is closed */
    msg(x, SET_VRING_ERR, &v, 8, fd);
    msg(x, 21, NULL, 0, fd);
    send_with(x, 999, 1 | NEED_REPLY, 0, NULL, 0, NULL, 0);
    assert_int_not_equal(reply_u64(x, 999), 0);
    send_with(x, SET_OWNER, 1 | NEED_REPLY, 0, NULL, 0, NULL, 0);
    assert_int_equal(reply_u64(x, SET_OWNER), 0);
    assert_int_equal(x->gone, 0);
    close(fd);
}

static void test_memory_table_again_while_running(void **state)
{
    struct fix *x = *state;
    start(x);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    good_mem(x); /* stops, maps, goes on */
    assert_true(x->toy->dev.vq[0].running);
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 2);
    mem_table(x, NULL, 0, NULL, 0); /* none at all */
    assert_false(x->toy->dev.vq[0].running);
    assert_int_equal(x->gone, 0);
}

static void test_reset_owner_stops_everything(void **state)
{
    struct fix *x = *state;
    start(x);
    msg(x, RESET_OWNER, NULL, 0, -1);
    assert_false(virtio_dev_running(&x->toy->dev));
    assert_int_equal(x->toy->resets, 1);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_true(x->toy->dev.vq[0].running);
}

static void test_end_of_file(void **state)
{
    struct fix *x = *state;
    start(x);
    close_fd(&x->fd);
    turn(x);
    assert_int_equal(x->gone, 1);
    assert_string_equal(x->reason, "vhost-user: the front end has gone");
    assert_int_equal(x->toy->resets, 1);
    kick(x); /* nobody is there */
    turn(x);
}

static void test_freed_inside_the_callback(void **state)
{
    struct fix *x = *state;
    start(x);
    x->free_when_told = true;
    add_buffer(x, 999); /* breaks the device */
    kick(x);
    turn(x);
    assert_int_equal(x->broken, 1);
    assert_null(x->v);
    turn(x);
    assert_int_equal(x->gone, 0);
}

/* --- bad front ends -------------------------------------------------------------------------- */

static void test_h09_configuration_is_latched(void **state)
{
    struct fix *x = *state;
    start(x);
    struct virtq before = x->toy->dev.vq[0];
    msg_state(x, SET_VRING_NUM, 0, 8);
    msg_state(x, SET_VRING_BASE, 0, 77);
    ring_addr(x, 0, RAM_USER + 1024, RAM_USER + 1024, RAM_USER + 1024);
    msg_u64(x, SET_FEATURES, 1ULL << 32, -1);
    assert_memory_equal(&x->toy->dev.vq[0], &before, sizeof(before));
    assert_int_equal(x->toy->dev.ignored, 4);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
    /* Re-enabling, and a second kick descriptor. */
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    int second = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    msg_u64(x, SET_VRING_KICK, 0, second);
    close_fd(&x->kick);
    x->kick = second;
    add_buffer(x, 1);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 2);
}

static void test_h09_kick_before_everything(void **state)
{
    struct fix *x = *state;
    x->kick = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_KICK, 0, x->kick);
    kick(x);
    turn(x);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    kick(x);
    turn(x);
    assert_int_equal(x->toy->kicks, 0);
    assert_int_equal(x->gone, 0);
}

static void test_h13_notify_storm(void **state)
{
    struct fix *x = *state;
    start(x);
    for (int i = 0; i < 1000000 / 50; i++) {
        for (int k = 0; k < 50; k++)
            kick(x);
        assert_int_equal(loop_turn(&x->loop, 0), 0);
    }
    /* However many kicks: once per turn. */
    assert_in_range(x->toy->kicks, 1000000 / 50, 1000000 / 50 + 8);
    turn(x);
    unsigned kicks = x->toy->kicks;
    turn(x);
    assert_int_equal(x->toy->kicks, kicks); /* and none without, though nobody reads them */
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);     /* the socket is served as ever */
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
    /* The counter of the eventfd is not ours to read, nor can it stop us. */
    uint64_t full = UINT64_MAX - 1, n;
    assert_int_equal(read(x->kick, &n, 8), 8);
    assert_int_equal(write(x->kick, &full, 8), 8);
    turn(x);
    assert_int_equal(read(x->kick, &n, 8), 8);
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 1);
}

static void test_h13_work_is_spread_over_turns(void **state)
{
    struct fix *x = *state;
    start(x);
    x->toy->budget = 4;
    for (uint16_t i = 0; i < QSIZE; i++)
        add_buffer(x, i);
    kick(x);
    assert_int_equal(loop_turn(&x->loop, 0), 0);
    assert_in_range(used_idx(x), 4, 8);
    for (int i = 0; i < 10; i++)
        assert_int_equal(loop_turn(&x->loop, 10), 0);
    assert_int_equal(used_idx(x), QSIZE);
}

static void test_a_broken_ring_is_told_once(void **state)
{
    struct fix *x = *state;
    start(x);
    add_buffer(x, 999);
    kick(x);
    turn(x);
    kick(x);
    turn(x);
    assert_int_equal(x->broken, 1);
    assert_string_equal(x->reason, "queue: descriptor index out of range");
    assert_int_equal(x->gone, 0);
    msg(x, GET_QUEUE_NUM, NULL, 0, -1);
    assert_int_equal(reply_u64(x, GET_QUEUE_NUM), 2);
}

static void test_h08_rings_outside_memory(void **state)
{
    struct fix *x = *state;
    negotiate(x);
    set_up_ring(x);
    const uint64_t bad[] = {
        0, RAM_GPA, RAM_USER - 16, RAM_USER + RAM_SIZE, RAM_USER + RAM_SIZE - 16, UINT64_MAX - 15};
    for (unsigned i = 0; i < 6; i++) {
        ring_addr(x, 0, bad[i], RAM_USER + AVAIL, RAM_USER + USED);
        msg_state(x, SET_VRING_ENABLE, 0, 1);
        turn(x);
        assert_false(x->toy->dev.vq[0].running);
        assert_int_equal(x->broken, i + 1);
        msg_state(x, SET_VRING_ENABLE, 0, 0);
    }
    ring_addr(x, 0, RAM_USER + DESC, RAM_USER + AVAIL, RAM_USER + USED);
    msg_state(x, SET_VRING_ENABLE, 0, 1);
    assert_true(x->toy->dev.vq[0].running);
}

static void test_malformed_headers(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 1, 0xffffffff, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_wrong_version(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 2, 0, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_reply_flag_in_a_request(void **state)
{
    struct fix *x = *state;
    send_with(x, GET_FEATURES, 5, 0, NULL, 0, NULL, 0);
    expect_gone(x);
}
static void test_wrong_payload_size(void **state)
{
    struct fix *x = *state;
    uint64_t v[2] = {0};
    msg(x, SET_FEATURES, v, 9, -1);
    expect_gone(x);
}
static void test_short_ring_message(void **state)
{
    struct fix *x = *state;
    uint64_t v[5] = {0};
    msg(x, SET_VRING_ADDR, v, 39, -1);
    expect_gone(x);
}
static void test_features_not_offered(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_FEATURES, UINT64_MAX, -1);
    expect_gone(x);
}
static void test_protocol_features_not_offered(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_PROTOCOL_FEATURES, 1, -1);
    expect_gone(x);
}
static void test_queue_index_out_of_range(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 2, 16);
    expect_gone(x);
}
static void test_queue_index_huge(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_ENABLE, 0xffffffff, 1);
    expect_gone(x);
}
static void test_kick_index_out_of_range(void **state)
{
    struct fix *x = *state;
    x->kick = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_KICK, 0xff, x->kick);
    expect_gone(x);
}
static void test_h07_queue_size_zero(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 0);
    expect_gone(x);
}
static void test_h07_queue_size_not_a_power_of_two(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 24);
    expect_gone(x);
}
static void test_h07_queue_size_too_large(void **state)
{
    struct fix *x = *state;
    msg_state(x, SET_VRING_NUM, 0, 65536 + 16);
    expect_gone(x);
}
static void test_gone_within_a_message(void **state)
{
    struct fix *x = *state;
    assert_int_equal(send(x->fd, "\1\0\0\0\1\0", 6, 0), 6);
    turn(x);
    assert_int_equal(x->gone, 0);
    close_fd(&x->fd);
    turn(x);
    assert_int_equal(x->gone, 1);
}
static void test_too_many_descriptors(void **state)
{
    struct fix *x = *state;
    int fds[12];
    for (int i = 0; i < 12; i++)
        fds[i] = x->mem_fd;
    send_with(x, SET_OWNER, 1, 0, NULL, 0, fds, 12);
    expect_gone(x);
}
static void test_a_descriptor_where_none_belongs(void **state)
{
    struct fix *x = *state;
    msg(x, SET_OWNER, NULL, 0, x->mem_fd);
    expect_gone(x);
}
static void test_replies_that_nobody_reads(void **state)
{
    struct fix *x = *state;
    uint8_t many[12 * 100] = {0};
    for (int i = 0; i < 100; i++) {
        many[12 * i] = GET_FEATURES;
        many[12 * i + 4] = 1;
    }
    for (int i = 0; i < 1000 && !x->gone; i++) {
        (void)send(x->fd, many, sizeof(many), MSG_DONTWAIT | MSG_NOSIGNAL);
        turn(x);
    }
    assert_int_equal(x->gone, 1); /* not blocked, not queued: disconnected */
}

/* Kick and call descriptors of the wrong kind. */
static void bad_kick(struct fix *x, int fd)
{
    msg_u64(x, SET_VRING_KICK, 0, fd);
    expect_gone(x);
    close(fd);
}
static void test_kick_is_a_file(void **state)
{
    bad_kick(*state, memfd_create("x", MFD_CLOEXEC));
}
static void test_kick_is_a_pipe(void **state)
{
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    close(p[1]);
    bad_kick(*state, p[0]);
}
static void test_kick_is_an_epoll(void **state)
{
    bad_kick(*state, epoll_create1(EPOLL_CLOEXEC));
}
static void test_kick_is_missing(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_VRING_KICK, 0, -1);
    expect_gone(x);
}
static void test_kick_by_polling(void **state)
{
    struct fix *x = *state;
    msg_u64(x, SET_VRING_KICK, 0x100, -1);
    expect_gone(x);
}
static void test_call_is_no_socket(void **state)
{
    struct fix *x = *state;
    int fd = eventfd(0, EFD_CLOEXEC);
    msg_u64(x, SET_VRING_CALL, 0, fd);
    expect_gone(x);
    close(fd);
}

static void test_a_call_socket_that_is_full(void **state)
{
    struct fix *x = *state;
    start(x);
    for (unsigned i = 0; i < 30000; i++) { /* its reader sleeps */
        uint16_t event = x->avail_idx;
        memcpy(x->ram + AVAIL + 4 + 2 * QSIZE, &event, 2); /* interrupt for each */
        add_buffer(x, (uint16_t)(i % QSIZE));
        kick(x);
        assert_int_equal(loop_turn(&x->loop, 0), 0);
    }
    assert_int_equal(used_idx(x), 30000);
    close_fd(&x->call); /* and then it goes away: no SIGPIPE */
    add_buffer(x, 0);
    kick(x);
    turn(x);
    assert_int_equal(used_idx(x), 30001);
}

/* Memory tables that lie. */
static void bad_mem(struct fix *x, struct region r)
{
    mem_table(x, &r, 1, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_region_empty(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, 0, RAM_USER, 0});
}
static void test_region_beyond_the_file(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, RAM_USER, RAM_OFFSET + 1});
}
static void test_region_wraps_in_the_file(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, RAM_USER, UINT64_MAX - 4095});
}
static void test_region_wraps_in_the_guest(void **state)
{
    bad_mem(*state, (struct region){UINT64_MAX - 4095, RAM_SIZE, RAM_USER, 0});
}
static void test_region_wraps_in_the_front_end(void **state)
{
    bad_mem(*state, (struct region){RAM_GPA, RAM_SIZE, UINT64_MAX - 4095, 0});
}
static void test_region_huge(void **state)
{
    bad_mem(*state, (struct region){0, UINT64_MAX, 0, 0});
}
static void test_regions_overlap(void **state)
{
    struct fix *x = *state;
    struct region r[] = {{RAM_GPA, 8192, RAM_USER, 0}, {RAM_GPA + 4096, 8192, RAM_USER + 8192, 0}};
    int fds[] = {x->mem_fd, x->mem_fd};
    mem_table(x, r, 2, fds, 2);
    expect_gone(x);
}
static void test_region_fd_is_a_pipe(void **state)
{
    struct fix *x = *state;
    struct region r = {RAM_GPA, 4096, RAM_USER, 0};
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    mem_table(x, &r, 1, p, 1);
    expect_gone(x);
    close(p[0]);
    close(p[1]);
}
static void test_more_regions_than_descriptors(void **state)
{
    struct fix *x = *state;
    struct region r[] = {{0, 4096, 0, 0}, {4096, 4096, 4096, 4096}};
    mem_table(x, r, 2, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_table_with_a_false_count(void **state)
{
    struct fix *x = *state;
    uint8_t b[40] = {0xff, 0xff, 0xff, 0xff};
    send_with(x, SET_MEM_TABLE, 1, 40, b, 40, &x->mem_fd, 1);
    expect_gone(x);
}
static void test_h12_config_out_of_bounds(void **state)
{
    struct fix *x = *state;
    uint8_t m[268] = {0}, r[512];
    uint32_t h[3] = {0xffffffff, 256, 0};
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 268, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 268);
    for (int i = 0; i < 256; i++)
        assert_int_equal(r[12 + i], 0);
    h[1] = 0xffffffff; /* says more than it has */
    memcpy(m, h, 12);
    msg(x, GET_CONFIG, m, 20, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 0); /* the protocol's error */
    msg(x, GET_CONFIG, m, 3, -1);
    assert_int_equal(reply(x, GET_CONFIG, r, sizeof(r)), 0);
    h[0] = 23;
    h[1] = 4;
    memcpy(m, h, 12);
    msg(x, SET_CONFIG, m, 16, -1); /* partly outside: refused as a whole */
    assert_int_equal(x->toy->config[23], 24);
    assert_int_equal(x->gone, 0);
    h[1] = 5;
    memcpy(m, h, 12);
    msg(x, SET_CONFIG, m, 16, -1);
    expect_gone(x);
}

/* cmocka takes SIGBUS for itself, so this one runs before it, in a process of its own. */
static int cut_off_memory(void)
{
    void *state;
    (void)setup(&state);
    struct fix *x = state;
    start(x);
    add_buffer(x, 0); /* its 8 bytes are on a page that goes away */
    if (ftruncate(x->mem_fd, RAM_OFFSET + BUF) < 0)
        return 2;
    kick(x);
    turn(x);
    if (x->gone != 1 || virtio_dev_running(&x->toy->dev))
        return 3;
    return strcmp(x->reason, "vhost-user: the guest cut off its own memory") == 0 ? 0 : 4;
}

static int cut_off_status;

static void test_a_guest_that_cuts_off_its_memory(void **state)
{
    (void)state;
    assert_true(WIFEXITED(cut_off_status));
    assert_int_equal(WEXITSTATUS(cut_off_status), 0);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(cut_off_memory());
    (void)waitpid(pid, &cut_off_status, 0);
    const struct CMUnitTest tests[] = {
        T(test_start_serve_stop),
        T(test_config),
        cmocka_unit_test(test_listener_accepts_one),
        T(test_messages_in_pieces),
        T(test_unknown_requests),
        T(test_memory_table_again_while_running),
        T(test_reset_owner_stops_everything),
        T(test_end_of_file),
        T(test_freed_inside_the_callback),
        T(test_h07_queue_size_zero),
        T(test_h07_queue_size_not_a_power_of_two),
        T(test_h07_queue_size_too_large),
        T(test_h08_rings_outside_memory),
        T(test_h09_configuration_is_latched),
        T(test_h09_kick_before_everything),
        T(test_h12_config_out_of_bounds),
        T(test_h13_notify_storm),
        T(test_h13_work_is_spread_over_turns),
        T(test_a_broken_ring_is_told_once),
        T(test_malformed_headers),
        T(test_wrong_version),
        T(test_reply_flag_in_a_request),
        T(test_wrong_payload_size),
        T(test_short_ring_message),
        T(test_features_not_offered),
        T(test_protocol_features_not_offered),
        T(test_queue_index_out_of_range),
        T(test_queue_index_huge),
        T(test_kick_index_out_of_range),
        T(test_gone_within_a_message),
        T(test_too_many_descriptors),
        T(test_a_descriptor_where_none_belongs),
        T(test_replies_that_nobody_reads),
        T(test_kick_is_a_file),
        T(test_kick_is_a_pipe),
        T(test_kick_is_an_epoll),
        T(test_kick_is_missing),
        T(test_kick_by_polling),
        T(test_call_is_no_socket),
        T(test_a_call_socket_that_is_full),
        cmocka_unit_test(test_a_guest_that_cuts_off_its_memory),
        T(test_region_empty),
        T(test_region_beyond_the_file),
        T(test_region_wraps_in_the_file),
        T(test_region_wraps_in_the_guest),
        T(test_region_wraps_in_the_front_end),
        T(test_region_huge),
        T(test_regions_overlap),
        T(test_region_fd_is_a_pipe),
        T(test_more_regions_than_descriptors),
        T(test_table_with_a_false_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
