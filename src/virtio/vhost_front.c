#include "virtio/vhost_front.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "virtio/vhost_msg.h"

/* #syscalls:monitor recvmsg sendto read close */

enum {
    CONFIG_BYTES = 64, /* of the device's configuration; what it lacks is zero */
    ANSWER_MS = 10000,
};

struct front {
    struct virtio_dev dev;
    struct virtio_dev_ops ops;
    struct loop *loop;
    struct loop_src src;
    struct vhost_conn conn; /* its fd: -1 when the server is gone */
    int err_fd;             /* an eventfd: the server reports that the driver broke a queue */
    struct loop_src err_src;
    uint8_t config[CONFIG_BYTES];
    bool featured; /* the server knows the features of this driver */
    bool busy;     /* its answer to a reset is pending */
};

static struct front *front_of(struct virtio_dev *d)
{
    return CONTAINER_OF(d, struct front, dev);
}

/* --- messages -------------------------------------------------------------------------------- */

static size_t pack(uint8_t out[sizeof(struct header) + PAYLOAD_MAX], uint32_t request,
                   const void *payload, size_t n)
{
    struct header h = {.request = request, .flags = F_VERSION, .size = (uint32_t)n};
    memcpy(out, &h, sizeof(h));
    if (n > 0)
        memcpy(out + sizeof(h), payload, n);
    return sizeof(h) + n;
}

/* A server that does not read the little that we send is as good as gone. */
static int front_send(struct front *f, uint32_t request, const void *payload, size_t n)
{
    uint8_t out[sizeof(struct header) + PAYLOAD_MAX];
    size_t len = pack(out, request, payload, n);
    return f->conn.fd >= 0 &&
                   send(f->conn.fd, out, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len
               ? 0
               : -EPIPE;
}

/* The same with descriptors: only before the guest runs. */
static int tell_fds(struct front *f, uint32_t request, const void *payload, size_t n,
                    const int *fds, unsigned n_fds)
{
    uint8_t out[sizeof(struct header) + PAYLOAD_MAX];
    union {
        struct cmsghdr align;
        uint8_t space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = out, .iov_len = pack(out, request, payload, n)};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};
    control.align.cmsg_level = SOL_SOCKET;
    control.align.cmsg_type = SCM_RIGHTS;
    control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    memcpy(CMSG_DATA(&control.align), fds, n_fds * sizeof(int));
    return sendmsg(f->conn.fd, &m, MSG_NOSIGNAL) == (ssize_t)iov.iov_len ? 0 : -EPIPE;
}

static int tell_u64(struct front *f, uint32_t request, uint64_t value)
{
    return front_send(f, request, &value, sizeof(value));
}

static int tell_state(struct front *f, uint32_t request, unsigned queue, uint32_t num)
{
    struct vhost_vring_state s = {.index = queue, .num = num};
    return front_send(f, request, &s, sizeof(s));
}

/* Sends a request and waits for its reply, of `n` bytes, in f->conn.msg. */
static int front_ask(struct front *f, uint32_t request, const void *payload, size_t len, size_t n)
{
    const char *why;
    int r = front_send(f, request, payload, len);
    while (r == 0) {
        struct pollfd p = {.fd = f->conn.fd, .events = POLLIN};
        int k = poll(&p, 1, ANSWER_MS);
        if (k == 0)
            return -ETIMEDOUT;
        r = k < 0 && errno != EINTR ? -errno : vhost_conn_read(&f->conn, &why);
    }
    if (r < 0)
        return r == -1 ? -EPROTO : r;
    bool good = f->conn.msg.h.request == request && f->conn.msg.h.size == n && f->conn.n_fds == 0;
    vhost_conn_next(&f->conn);
    return good ? 0 : -EPROTO;
}

static int ask_u64(struct front *f, uint32_t request, uint64_t *ret)
{
    int r = front_ask(f, request, NULL, 0, sizeof(*ret));
    if (r == 0)
        *ret = f->conn.msg.p.u64;
    return r;
}

/* --- the server while the guest runs --------------------------------------------------------- */

static bool was_told(struct front *f)
{
    uint64_t n;
    return read(f->err_fd, &n, sizeof(n)) == (ssize_t)sizeof(n);
}

static void on_error(struct loop_src *src, uint32_t events)
{
    struct front *f = CONTAINER_OF(src, struct front, err_src);
    if (was_told(f) && !f->busy) /* else a reset is under way, which repairs it */
        virtio_dev_break(&f->dev, "vhost-user: the driver broke a queue");
}

static void front_settle(struct front *f)
{
    f->busy = false;
    (void)was_told(f);
    if (f->dev.transport)
        f->dev.transport->settled(f->dev.transport);
}

static void front_lost(struct front *f, const char *why)
{
    if (f->conn.fd < 0)
        return;
    vhost_conn_drop_fds(&f->conn);
    loop_del(f->loop, &f->src);
    close_fd(&f->conn.fd);
    virtio_dev_break(&f->dev, why);
    if (f->busy)
        front_settle(f);
}

static void on_readable(struct loop_src *src, uint32_t events)
{
    struct front *f = CONTAINER_OF(src, struct front, src);
    const char *why;
    int r = vhost_conn_read(&f->conn, &why);
    if (r < 0) {
        front_lost(f, "vhost-user: the process that serves the device is gone");
    } else if (r > 0) {
        bool awaited = f->busy && f->conn.msg.h.request == GET_FEATURES;
        vhost_conn_next(&f->conn);
        if (awaited)
            front_settle(f);
        else
            front_lost(f,
                       "vhost-user: the process that serves the device sent an unexpected message");
    }
}

/* --- what the transport asks for ------------------------------------------------------------- */

/* A queue was started. The server checks its configuration again. */
static int64_t front_kick(struct virtio_dev *d, unsigned queue)
{
    struct front *f = front_of(d);
    const struct virtq_config *c = &d->vq[queue].cfg;
    struct vring_addr a = {.index = queue, .desc = c->desc, .avail = c->avail, .used = c->used};
    int r = 0;
    if (!f->featured)
        r = tell_u64(f, SET_FEATURES, d->acked | F_PROTOCOL_FEATURES);
    f->featured = true;
    if (r == 0)
        r = tell_state(f, SET_VRING_NUM, queue, c->size);
    if (r == 0)
        r = tell_state(f, SET_VRING_BASE, queue, 0);
    if (r == 0)
        r = front_send(f, SET_VRING_ADDR, &a, sizeof(a));
    if (r == 0)
        r = tell_state(f, SET_VRING_ENABLE, queue, 1);
    if (r < 0)
        virtio_dev_break(d, "vhost-user: the process that serves the device cannot be reached");
    return VIRTIO_IDLE;
}

/* Messages are handled in order, so the reply to the last one acknowledges all. */
static void front_reset(struct virtio_dev *d)
{
    struct front *f = front_of(d);
    int r = 0;
    f->featured = false;
    for (unsigned i = 0; r == 0 && i < d->ops->n_queues; i++)
        r = tell_state(f, SET_VRING_ENABLE, i, 0);
    if (r == 0)
        r = front_send(f, GET_FEATURES, NULL, 0);
    f->busy = r == 0;
}

static bool front_busy(const struct virtio_dev *d)
{
    return ((const struct front *)(const void *)d)->busy;
}

static int front_wire(struct virtio_dev *d, const int *kick_fds, int call_fd)
{
    struct front *f = front_of(d);
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < d->ops->n_queues; i++) {
        r = tell_fds(f, SET_VRING_ERR, &i, sizeof(i), &f->err_fd, 1);
        if (r == 0)
            r = tell_fds(f, SET_VRING_CALL, &i, sizeof(i), &call_fd, 1);
        if (r == 0)
            r = tell_fds(f, SET_VRING_KICK, &i, sizeof(i), &kick_fds[i], 1);
    }
    return r;
}

static void front_free(struct virtio_dev *d)
{
    struct front *f = front_of(d);
    vhost_conn_drop_fds(&f->conn);
    loop_del(f->loop, &f->src);
    loop_del(f->loop, &f->err_src);
    close_fd(&f->conn.fd);
    close_fd(&f->err_fd);
    free(f);
}

/* --- life ------------------------------------------------------------------------------------ */

/* Rings are identified by the guest's own addresses. */
static int give_memory(struct front *f, const struct guest_mem *mem, int fd)
{
    struct mem_table t = {.n = mem->n};
    int fds[FDS_MAX] = {0};
    uint64_t off = 0;
    for (unsigned i = 0; i < mem->n; i++) {
        const struct guest_region *g = &mem->region[i];
        t.region[i] = (struct mem_region){
            .gpa = g->gpa, .size = g->size, .user_addr = g->gpa, .mmap_offset = off};
        fds[i] = fd;
        off += g->size;
    }
    return tell_fds(f, SET_MEM_TABLE, &t,
                    offsetof(struct mem_table, region) + mem->n * sizeof(t.region[0]), fds, mem->n);
}

static int negotiate(struct front *f, const struct vhost_front_params *p)
{
    uint64_t features = 0, protocol = 0;
    struct config_msg c = {.size = CONFIG_BYTES};
    size_t n = offsetof(struct config_msg, data) + CONFIG_BYTES;
    int r = front_send(f, SET_OWNER, NULL, 0);
    if (r == 0)
        r = ask_u64(f, GET_FEATURES, &features);
    if (r == 0)
        r = ask_u64(f, GET_PROTOCOL_FEATURES, &protocol);
    if (r == 0 && (!(features & F_PROTOCOL_FEATURES) || !(protocol & PROTOCOL_F_CONFIG)))
        r = -EPROTO;
    if (r == 0)
        r = tell_u64(f, SET_PROTOCOL_FEATURES, PROTOCOL_F_CONFIG);
    if (r == 0)
        r = front_ask(f, GET_CONFIG, &c, n, n);
    if (r < 0)
        return r;
    memcpy(f->config, f->conn.msg.p.config.data, CONFIG_BYTES);
    f->dev.features = features & ~F_PROTOCOL_FEATURES;
    return give_memory(f, p->mem, p->mem_fd);
}

int vhost_front_new(struct virtio_dev **ret, struct loop *l, const struct vhost_front_params *p)
{
    AUTO_FREE struct front *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    if (p->kind->n_queues > VIRTIO_QUEUES_MAX || p->mem->n == 0)
        return -EINVAL;
    f->loop = l;
    f->conn = (struct vhost_conn){.fd = p->fd, .front = true};
    f->src = (struct loop_src){.fd = p->fd, .fn = on_readable};
    f->ops = (struct virtio_dev_ops){.name = p->kind->name,
                                     .id = p->kind->id,
                                     .n_queues = p->kind->n_queues,
                                     .kick = front_kick,
                                     .reset = front_reset,
                                     .wire = front_wire,
                                     .busy = front_busy,
                                     .free = front_free};
    f->dev.ops = &f->ops;
    f->dev.config = f->config;
    f->dev.config_len = CONFIG_BYTES;
    f->err_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->err_src = (struct loop_src){.fd = f->err_fd, .fn = on_error};
    int r = f->err_fd < 0 ? -errno : negotiate(f, p);
    if (r == 0)
        r = loop_add(l, &f->err_src, EPOLLIN);
    if (r == 0 && (r = loop_add(l, &f->src, EPOLLIN)) < 0)
        loop_del(l, &f->err_src);
    if (r < 0) {
        vhost_conn_drop_fds(&f->conn);
        close_fd(&f->err_fd);
        return r;
    }
    *ret = &f->dev;
    (void)steal_ptr(&f);
    return 0;
}
