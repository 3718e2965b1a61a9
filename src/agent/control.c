#include "agent/control.h"

#include "agent/vsock.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RX_STEP = 16 * 1024,
    TX_MAX = 64 * 1024, /* a monitor that does not read only loses log lines */
    END_WAIT_MS = 200,  /* time for the monitor to end a guest that has nothing more to do */
};

static void control_flush(struct control *c)
{
    while (buf_len(&c->tx)) {
        ssize_t n = send(c->src.fd, buf_head(&c->tx), buf_len(&c->tx), MSG_NOSIGNAL);
        if (n < 0)
            break; /* later, or never: a dead stream is noticed when reading it */
        buf_consume(&c->tx, (size_t)n);
    }
    if (c->loop)
        (void)loop_mod(c->loop, &c->src, buf_len(&c->tx) ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void put_simple(struct control *c, uint16_t type, uint16_t tag, const char *text)
{
    struct proto_writer w;
    proto_begin(&w, &c->tx, type);
    if (text)
        proto_str(&w, tag, text);
    (void)proto_end(&w);
    control_flush(c);
}

static ssize_t control_receive(struct control *c)
{
    uint8_t *to = buf_reserve(&c->rx, RX_STEP);
    if (!to)
        return -ENOMEM;
    ssize_t n = recv(c->src.fd, to, RX_STEP, 0);
    if (n < 0)
        return -errno;
    buf_commit(&c->rx, (size_t)n);
    return n;
}

int control_configure(struct control *c, struct config *cfg, struct err *e)
{
    struct proto_frame f;
    for (;;) {
        int got;
        while ((got = proto_peek(&c->rx, &f)) == 1) {
            int r = f.type == PROTO_CONFIG ? config_parse(cfg, &f) : 1;
            proto_consume(&c->rx, &f);
            if (r < 0)
                return err_sys(e, -r, "cannot read the configuration");
            if (r == 0)
                return 0;
        }
        ssize_t n = got < 0 ? got : control_receive(c);
        if (n <= 0 && n != -EINTR)
            return err_set(e, EPROTO, "the monitor sent no configuration");
    }
}

int control_open(struct control *c, struct err *e)
{
    *c = (struct control){.src.fd = vsock_connect(PROTO_PORT_CONTROL)};
    buf_init(&c->rx, PROTO_HDR_LEN + PROTO_MSG_MAX + RX_STEP);
    buf_init(&c->tx, TX_MAX);
    if (c->src.fd < 0)
        return err_sys(e, -c->src.fd, "cannot connect to the monitor");
    (void)proto_put_hello(&c->tx);
    control_flush(c);
    return 0;
}

void control_ready(struct control *c)
{
    put_simple(c, PROTO_READY, 0, NULL);
}

void control_sealed(struct control *c)
{
    put_simple(c, PROTO_SEALED, 0, NULL);
}

void control_log(struct control *c, const char *text)
{
    put_simple(c, PROTO_LOG, F_TEXT, text);
}

void control_oom(struct control *c, uint64_t kills)
{
    struct proto_writer w;
    proto_begin(&w, &c->tx, PROTO_OOM);
    proto_u64(&w, F_KILLS, kills);
    (void)proto_end(&w);
    control_flush(c);
}

/* All time that is not idle, in /proc/stat's ticks of a hundredth of a second. 0: it cannot be
 * read. */
static uint64_t cpu_ns(void)
{
    unsigned long long user, nice, system, irq, softirq;
    AUTO_FCLOSE FILE *f = fopen("/proc/stat", "re");
    if (!f || fscanf(f, "cpu %llu %llu %llu %*u %*u %llu %llu", &user, &nice, &system, &irq,
                     &softirq) != 5)
        return 0;
    return (user + nice + system + irq + softirq) * 10000000ULL;
}

static void wait_for_end(const struct control *c)
{
    struct pollfd p = {.fd = c->src.fd, .events = POLLRDHUP};
    (void)poll(&p, 1, END_WAIT_MS);
}

void control_down(struct control *c)
{
    if (c->src.fd < 0)
        return;
    struct proto_writer w;
    proto_begin(&w, &c->tx, PROTO_DOWN);
    proto_u64(&w, F_CPU_NS, cpu_ns());
    (void)proto_end(&w);
    control_flush(c);
    wait_for_end(c);
}

void control_fail(struct control *c, const struct err *e)
{
    if (c->src.fd < 0)
        return;
    (void)proto_put_fail(&c->tx, PROTO_FAIL_BOOT, e->code, e->msg);
    control_flush(c);
    wait_for_end(c);
}

/* --- in the loop --- */

static void pong(struct control *c, const struct proto_frame *f)
{
    struct proto_writer w;
    proto_begin(&w, &c->tx, PROTO_PONG);
    proto_u64(&w, F_COOKIE, proto_find_num(f, F_COOKIE, 0));
    proto_u64(&w, F_CPU_NS, cpu_ns());
    (void)proto_end(&w);
}

static void on_control(struct loop_src *src, uint32_t events)
{
    struct control *c = (struct control *)src; /* its first member */
    struct proto_frame f;
    int got = 0;
    ssize_t n = events & ~(uint32_t)EPOLLOUT ? control_receive(c) : -EAGAIN;
    while ((got = proto_peek(&c->rx, &f)) == 1) {
        if (f.type == PROTO_PING)
            pong(c, &f);
        else if (f.type == PROTO_SHUTDOWN)
            c->on_shutdown(c, proto_find_num(&f, F_GRACE_MS, 0));
        else if (f.type == PROTO_SEAL)
            c->on_seal(c);
        else if (f.type == PROTO_ENV)
            c->on_env(c, &f);
        proto_consume(&c->rx, &f);
    }
    control_flush(c);
    if (got < 0 || (n <= 0 && n != -EAGAIN && n != -EINTR))
        c->on_lost(c);
}

int control_watch(struct control *c, struct loop *l)
{
    if (fcntl(c->src.fd, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    c->loop = l;
    c->src.fn = on_control;
    return loop_add(l, &c->src, EPOLLIN);
}
