/* See vhost_user.h. The messages are the published vhost-user protocol; the only protocol feature
 * offered is CONFIG.
 *
 * How it stays responsive and safe:
 *  1. A message is read piece by piece, never past its end, without blocking (vhost_msg.c);
 *     descriptors that came with it are held until the handler takes them, and closed after it.
 *  2. Requests are described in one table (size, number of descriptors); a handler sees only
 *     messages that fit.
 *  3. Kick descriptors must be eventfds. They are watched edge-triggered and never read, so there
 *     is no read to block on, and a storm of kicks is one event per turn.
 *  4. Call descriptors must be sockets: a send with MSG_DONTWAIT cannot block, whatever flags the
 *     front end sets on its end. Eventfds, which KVM needs, are taken only from a front end that
 *     cannot change them (vhost_user_take_eventfds), and only non-blocking ones.
 *  5. A running ring's configuration is latched in the queue; messages that would change it are
 *     ignored and counted.
 *  6. Owners are told of events from a timer, never from the depth of a handler.
 */
#include "virtio/vhost_user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "virtio/guest_map.h"
#include "virtio/vhost_msg.h"

/* #syscalls:monitor,fs,net accept4 sendto fstat newfstatat getsockopt fcntl write close */

enum { MESSAGES_PER_TURN = 16 };

struct ring {
    struct vhost_user *v;
    unsigned index;
    struct virtq_config cfg; /* addresses are the front end's until the ring is started */
    bool have_addr, enabled;
    bool call_is_event; /* call_fd is an eventfd, else a socket */
    int call_fd, kick_fd;
    int err_fd;              /* an eventfd: tells the front end that the ring broke */
    struct loop_src kick;    /* watches kick_fd */
    struct loop_timer later; /* the device wants to be kicked again */
};

struct mapping {
    uint64_t user_addr, gpa, size;
    struct guest_map *map;
};

struct vhost_user {
    struct loop *loop;
    struct virtio_dev *dev;
    const struct vhost_user_events *ev;
    void *ctx;
    struct virtio_transport transport;
    struct vhost_conn conn; /* its fd: the listener, then the connection; -1 when gone */
    struct loop_src src;

    bool take_eventfds;
    uint64_t acked; /* features, the transport's own included */
    struct guest_mem mem;
    struct mapping mapping[GUEST_REGIONS_MAX];
    unsigned n_mappings;
    struct ring ring[VIRTIO_QUEUES_MAX];

    struct loop_timer tell; /* delivers the two reasons */
    const char *broken, *gone;
};

/* --- rings ---------------------------------------------------------------------------------- */

static bool ring_running(const struct ring *r)
{
    return r->v->dev->vq[r->index].running;
}

static void ring_stop(struct ring *r)
{
    if (ring_running(r))
        r->cfg.next_avail = r->v->dev->vq[r->index].next_avail;
    loop_timer_off(r->v->loop, &r->later);
    virtio_dev_stop_queue(r->v->dev, r->index);
}

/* A front end's own address -> guest physical; the queue checks the length later. */
static bool to_gpa(const struct vhost_user *v, uint64_t *addr)
{
    for (unsigned i = 0; i < v->n_mappings; i++) {
        const struct mapping *m = &v->mapping[i];
        if (*addr - m->user_addr < m->size) {
            *addr = *addr - m->user_addr + m->gpa;
            return true;
        }
    }
    return false;
}

/* Starts the ring if everything it needs is available. */
static void ring_update(struct ring *r)
{
    struct vhost_user *v = r->v;
    bool enabled = r->enabled || !(v->acked & F_PROTOCOL_FEATURES);
    if (!enabled || r->kick_fd < 0 || !r->have_addr || r->cfg.size == 0 || v->n_mappings == 0 ||
        ring_running(r))
        return;
    struct virtq_config cfg = r->cfg;
    if (!to_gpa(v, &cfg.desc) || !to_gpa(v, &cfg.avail) || !to_gpa(v, &cfg.used)) {
        virtio_dev_break(v->dev, "vhost-user: ring is outside guest memory");
        return;
    }
    /* Fails only by breaking the device, which the owner is told. */
    (void)virtio_dev_start_queue(v->dev, r->index, &v->mem, &cfg);
}

static void ring_set_kick(struct ring *r, int fd)
{
    loop_del(r->v->loop, &r->kick);
    close_fd(&r->kick_fd);
    r->kick_fd = fd;
}

static void stop_all(struct vhost_user *v)
{
    for (unsigned i = 0; i < v->dev->ops->n_queues; i++)
        ring_stop(&v->ring[i]);
}

static void unmap_all(struct vhost_user *v)
{
    guest_mem_clear(&v->mem);
    for (unsigned i = 0; i < v->n_mappings; i++)
        guest_map_put(v->mapping[i].map);
    v->n_mappings = 0;
}

/* Ends the connection; the owner is told in the next turn. */
static void hang_up(struct vhost_user *v, const char *reason)
{
    if (v->conn.fd < 0)
        return;
    stop_all(v);
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        ring_set_kick(&v->ring[i], -1);
        close_fd(&v->ring[i].call_fd);
        close_fd(&v->ring[i].err_fd);
    }
    unmap_all(v);
    vhost_conn_drop_fds(&v->conn);
    loop_del(v->loop, &v->src);
    close_fd(&v->conn.fd);
    v->gone = reason;
    loop_timer_set(v->loop, &v->tell, 0);
}

static void kick_ring(struct ring *r)
{
    struct vhost_user *v = r->v;
    virtio_dev_kick(v->dev, r->index);
    for (unsigned i = 0; i < v->n_mappings; i++)
        if (guest_map_lost(v->mapping[i].map)) {
            hang_up(v, "vhost-user: the guest cut off its own memory");
            return;
        }
}

static void on_kick(struct loop_src *src, uint32_t events)
{
    kick_ring(CONTAINER_OF(src, struct ring, kick));
}

static void on_later(struct loop_timer *t)
{
    kick_ring(CONTAINER_OF(t, struct ring, later));
}

/* --- what the device asks of us ------------------------------------------------------------- */

static void transport_interrupt(struct virtio_transport *t, unsigned queue)
{
    struct vhost_user *v = CONTAINER_OF(t, struct vhost_user, transport);
    static const uint64_t one = 1;
    const struct ring *r = &v->ring[queue];
    /* If it is full, the front end has interrupts pending anyway. */
    if (r->call_fd >= 0 && r->call_is_event)
        (void)!write(r->call_fd, &one, sizeof(one));
    else if (r->call_fd >= 0)
        (void)send(r->call_fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void transport_broken(struct virtio_transport *t, const char *reason)
{
    struct vhost_user *v = CONTAINER_OF(t, struct vhost_user, transport);
    static const uint64_t one = 1;
    for (unsigned i = 0; i < v->dev->ops->n_queues; i++)
        if (v->ring[i].err_fd >= 0)
            (void)!write(v->ring[i].err_fd, &one, sizeof(one));
    v->broken = reason;
    loop_timer_set(v->loop, &v->tell, 0);
}

static void transport_kick_later(struct virtio_transport *t, unsigned queue, uint64_t delay_ns)
{
    struct vhost_user *v = CONTAINER_OF(t, struct vhost_user, transport);
    loop_timer_by(v->loop, &v->ring[queue].later, delay_ns);
}

static void on_tell(struct loop_timer *t)
{
    struct vhost_user *v = CONTAINER_OF(t, struct vhost_user, tell);
    const char *broken = v->broken, *gone = v->gone;
    /* One at a time: the owner may free us in either. */
    if (broken) {
        v->broken = NULL;
        if (gone)
            loop_timer_set(v->loop, &v->tell, 0);
        if (v->ev && v->ev->broken)
            v->ev->broken(v->ctx, broken);
    } else if (gone) {
        v->gone = NULL;
        if (v->ev && v->ev->gone)
            v->ev->gone(v->ctx, gone);
    }
}

/* --- requests ------------------------------------------------------------------------------- */

/* Handlers return NULL, or why the connection has to end. */

static const char *reply_u64(struct vhost_user *v, uint64_t value)
{
    v->conn.msg.p.u64 = value;
    return vhost_conn_reply(&v->conn, sizeof(value));
}

static struct ring *ring_of(struct vhost_user *v, uint64_t index)
{
    return index < v->dev->ops->n_queues ? &v->ring[index] : NULL;
}

static const char bad_index[] = "vhost-user: queue index out of range";

/* True, and counted, if the ring runs and its configuration is latched. */
static bool latched(struct ring *r)
{
    if (!ring_running(r))
        return false;
    r->v->dev->ignored++;
    return true;
}

static const char *get_features(struct vhost_user *v)
{
    return reply_u64(v, v->dev->features | F_PROTOCOL_FEATURES);
}

static const char *set_features(struct vhost_user *v)
{
    uint64_t acked = v->conn.msg.p.u64;
    int r = virtio_dev_set_features(v->dev, acked & ~F_PROTOCOL_FEATURES);
    if (r == -EINVAL)
        return "vhost-user: features that were not offered";
    if (r == 0)
        v->acked = acked;
    return NULL;
}

static const char *get_protocol_features(struct vhost_user *v)
{
    return reply_u64(v, PROTOCOL_F_CONFIG);
}

static const char *set_protocol_features(struct vhost_user *v)
{
    if (v->conn.msg.p.u64 & ~PROTOCOL_F_CONFIG)
        return "vhost-user: protocol features that were not offered";
    return NULL;
}

static const char *get_queue_num(struct vhost_user *v)
{
    return reply_u64(v, v->dev->ops->n_queues);
}

static const char *do_nothing(struct vhost_user *v)
{
    return NULL;
}

static const char *reset_device(struct vhost_user *v)
{
    stop_all(v);
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++)
        v->ring[i].enabled = false;
    return NULL;
}

static const char *map_region(struct vhost_user *v, const struct mem_region *r, int fd)
{
    struct guest_map *map;
    if (r->size == 0 || r->user_addr > UINT64_MAX - r->size)
        return "vhost-user: memory region is empty or wraps";
    for (unsigned i = 0; i < v->n_mappings; i++) {
        const struct mapping *m = &v->mapping[i];
        if (r->user_addr < m->user_addr + m->size && m->user_addr < r->user_addr + r->size)
            return "vhost-user: memory regions overlap";
    }
    if (guest_map_get(&map, fd, r->mmap_offset, r->size) < 0)
        return "vhost-user: memory region cannot be mapped";
    if (guest_mem_add(&v->mem, r->gpa, r->size, guest_map_host(map)) < 0) {
        guest_map_put(map);
        return "vhost-user: memory region is empty, wraps or overlaps another";
    }
    v->mapping[v->n_mappings++] =
        (struct mapping){.user_addr = r->user_addr, .gpa = r->gpa, .size = r->size, .map = map};
    return NULL;
}

static const char *set_mem_table(struct vhost_user *v)
{
    const struct mem_table *t = &v->conn.msg.p.mem;
    if (v->conn.msg.h.size < 8 || t->n > GUEST_REGIONS_MAX || t->n != v->conn.n_fds ||
        v->conn.msg.h.size != 8 + t->n * sizeof(t->region[0]))
        return "vhost-user: malformed memory table";
    stop_all(v);
    unmap_all(v);
    for (unsigned i = 0; i < t->n; i++) {
        const char *why = map_region(v, &t->region[i], v->conn.fds[i]);
        if (why)
            return why;
    }
    for (unsigned i = 0; i < v->dev->ops->n_queues; i++)
        ring_update(&v->ring[i]);
    return NULL;
}

static const char *set_vring_num(struct vhost_user *v)
{
    struct ring *r = ring_of(v, v->conn.msg.p.state.index);
    uint32_t num = v->conn.msg.p.state.num;
    if (!r)
        return bad_index;
    if (num == 0 || num > VIRTQ_SIZE_MAX || (num & (num - 1)) != 0)
        return "vhost-user: queue size is not a power of two in range";
    if (!latched(r))
        r->cfg.size = (uint16_t)num;
    return NULL;
}

static const char *set_vring_addr(struct vhost_user *v)
{
    const struct vring_addr *a = &v->conn.msg.p.addr;
    struct ring *r = ring_of(v, a->index);
    if (!r)
        return bad_index;
    if (latched(r))
        return NULL;
    r->cfg.desc = a->desc;
    r->cfg.avail = a->avail;
    r->cfg.used = a->used;
    r->have_addr = true;
    ring_update(r);
    return NULL;
}

static const char *set_vring_base(struct vhost_user *v)
{
    struct ring *r = ring_of(v, v->conn.msg.p.state.index);
    if (!r || v->conn.msg.p.state.num > UINT16_MAX)
        return bad_index;
    if (!latched(r))
        r->cfg.next_avail = (uint16_t)v->conn.msg.p.state.num;
    return NULL;
}

static const char *get_vring_base(struct vhost_user *v)
{
    struct ring *r = ring_of(v, v->conn.msg.p.state.index);
    if (!r)
        return bad_index;
    ring_stop(r);
    ring_set_kick(r, -1);
    v->conn.msg.p.state.num = r->cfg.next_avail;
    return vhost_conn_reply(&v->conn, sizeof(v->conn.msg.p.state));
}

/* The descriptor of a SET_VRING_{KICK,CALL,ERR}; -1: explicitly none. */
static const char *take_ring_fd(struct vhost_user *v, struct ring **ret, int *ret_fd)
{
    uint64_t value = v->conn.msg.p.u64;
    bool none = value & 0x100;
    *ret = ring_of(v, value & 0xff);
    if (!*ret)
        return bad_index;
    if (none != (v->conn.n_fds == 0))
        return "vhost-user: a descriptor is missing, or there is one too many";
    *ret_fd = none ? -1 : steal_fd(&v->conn.fds[0]);
    return NULL;
}

static bool is_anonymous(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0;
}

/* An eventfd is an anonymous inode that takes a write of eight zero bytes, which has no effect and
 * cannot block. None of the other anonymous kinds (epoll, timerfd, ...) does. */
static bool is_eventfd(int fd)
{
    static const uint64_t zero = 0;
    return is_anonymous(fd) && write(fd, &zero, sizeof(zero)) == (ssize_t)sizeof(zero);
}

static bool is_unix_socket(int fd)
{
    int domain = -1;
    socklen_t len = sizeof(domain);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

static const char *set_vring_kick(struct vhost_user *v)
{
    struct ring *r;
    AUTO_CLOSE int fd = -1;
    const char *why = take_ring_fd(v, &r, &fd);
    if (why)
        return why;
    if (fd < 0 || !is_eventfd(fd))
        return "vhost-user: kick descriptor is not an eventfd";
    ring_set_kick(r, steal_fd(&fd));
    r->kick.fd = r->kick_fd;
    if (loop_add(v->loop, &r->kick, EPOLLIN | EPOLLET) < 0) {
        r->kick.fd = -1;
        return "vhost-user: kick descriptor cannot be watched";
    }
    ring_update(r);
    return NULL;
}

static bool may_block(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || !(flags & O_NONBLOCK);
}

static const char *set_vring_call(struct vhost_user *v)
{
    struct ring *r;
    AUTO_CLOSE int fd = -1;
    const char *why = take_ring_fd(v, &r, &fd);
    if (why)
        return why;
    /* Not probed: KVM takes even a write of zero as an interrupt. Any other kind would refuse the
     * write. */
    bool event = fd >= 0 && v->take_eventfds && is_anonymous(fd);
    if (event && may_block(fd))
        return "vhost-user: call descriptor may block";
    if (fd >= 0 && !event && !is_unix_socket(fd))
        return "vhost-user: call descriptor is not a socket";
    close_fd(&r->call_fd);
    r->call_is_event = event;
    r->call_fd = steal_fd(&fd);
    return NULL;
}

static const char *set_vring_err(struct vhost_user *v)
{
    struct ring *r;
    AUTO_CLOSE int fd = -1;
    if (!v->take_eventfds)
        return NULL;
    const char *why = take_ring_fd(v, &r, &fd);
    if (why)
        return why;
    if (fd >= 0 && (!is_eventfd(fd) || may_block(fd)))
        return "vhost-user: error descriptor is not an eventfd, or may block";
    close_fd(&r->err_fd);
    r->err_fd = steal_fd(&fd);
    return NULL;
}

static const char *set_vring_enable(struct vhost_user *v)
{
    struct ring *r = ring_of(v, v->conn.msg.p.state.index);
    if (!r)
        return bad_index;
    r->enabled = v->conn.msg.p.state.num != 0;
    if (r->enabled)
        ring_update(r);
    else
        ring_stop(r);
    return NULL;
}

static const char *get_config(struct vhost_user *v)
{
    struct config_msg *c = &v->conn.msg.p.config;
    /* A reply without payload means an error in this protocol. */
    if (v->conn.msg.h.size < 12 || c->size != v->conn.msg.h.size - 12 || c->size > CONFIG_MAX)
        return vhost_conn_reply(&v->conn, 0);
    virtio_dev_config_read(v->dev, c->offset, c->data, c->size);
    return vhost_conn_reply(&v->conn, v->conn.msg.h.size);
}

static const char *set_config(struct vhost_user *v)
{
    const struct config_msg *c = &v->conn.msg.p.config;
    if (v->conn.msg.h.size < 12 || c->size != v->conn.msg.h.size - 12 || c->size > CONFIG_MAX)
        return "vhost-user: malformed configuration write";
    (void)virtio_dev_config_write(v->dev, c->offset, c->data, c->size);
    return NULL;
}

enum { ANY_SIZE = UINT16_MAX };

static const struct {
    const char *(*fn)(struct vhost_user *v);
    uint16_t size;  /* of the payload */
    uint8_t fds;    /* at most */
    bool has_reply; /* always */
} requests[] = {
    [GET_FEATURES] = {get_features, 0, 0, true},
    [SET_FEATURES] = {set_features, 8, 0, false},
    [SET_OWNER] = {do_nothing, 0, 0, false},
    [RESET_OWNER] = {reset_device, 0, 0, false},
    [SET_MEM_TABLE] = {set_mem_table, ANY_SIZE, FDS_MAX, false},
    [SET_VRING_NUM] = {set_vring_num, 8, 0, false},
    [SET_VRING_ADDR] = {set_vring_addr, 40, 0, false},
    [SET_VRING_BASE] = {set_vring_base, 8, 0, false},
    [GET_VRING_BASE] = {get_vring_base, 8, 0, true},
    [SET_VRING_KICK] = {set_vring_kick, 8, 1, false},
    [SET_VRING_CALL] = {set_vring_call, 8, 1, false},
    [SET_VRING_ERR] = {set_vring_err, 8, 1, false},
    [GET_PROTOCOL_FEATURES] = {get_protocol_features, 0, 0, true},
    [SET_PROTOCOL_FEATURES] = {set_protocol_features, 8, 0, false},
    [GET_QUEUE_NUM] = {get_queue_num, 0, 0, true},
    [SET_VRING_ENABLE] = {set_vring_enable, 8, 0, false},
    [GET_CONFIG] = {get_config, ANY_SIZE, 0, true},
    [SET_CONFIG] = {set_config, ANY_SIZE, 0, false},
    [RESET_DEVICE] = {reset_device, 0, 0, false},
};

/* --- messages ------------------------------------------------------------------------------- */

static const char *dispatch(struct vhost_user *v)
{
    uint32_t request = v->conn.msg.h.request;
    bool need_reply = v->conn.msg.h.flags & F_NEED_REPLY;

    if (request >= ARRAY_LEN(requests) || !requests[request].fn)
        return need_reply ? reply_u64(v, EOPNOTSUPP) : NULL; /* unknown here: ignored */
    if (requests[request].size != ANY_SIZE && requests[request].size != v->conn.msg.h.size)
        return "vhost-user: message of the wrong size";
    if (v->conn.n_fds > requests[request].fds)
        return "vhost-user: message with too many descriptors";
    const char *why = requests[request].fn(v);
    if (!why && need_reply && !requests[request].has_reply)
        why = reply_u64(v, 0);
    return why;
}

static void on_readable(struct loop_src *src, uint32_t events)
{
    struct vhost_user *v = CONTAINER_OF(src, struct vhost_user, src);
    for (unsigned i = 0; i < MESSAGES_PER_TURN && v->conn.fd >= 0; i++) {
        const char *why = NULL;
        int r = vhost_conn_read(&v->conn, &why);
        if (r == 0)
            return;
        if (r > 0)
            why = dispatch(v);
        vhost_conn_next(&v->conn);
        if (why)
            hang_up(v, why);
    }
}

/* --- life ----------------------------------------------------------------------------------- */

static int watch_conn(struct vhost_user *v, int fd, loop_fn fn)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    v->src.fd = fd;
    v->src.fn = fn;
    int r = loop_add(v->loop, &v->src, EPOLLIN);
    if (r < 0)
        v->src.fd = -1;
    return r;
}

static void on_accept(struct loop_src *src, uint32_t events)
{
    struct vhost_user *v = CONTAINER_OF(src, struct vhost_user, src);
    int fd = accept4(v->conn.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    loop_del(v->loop, &v->src);
    close_fd(&v->conn.fd);
    v->conn.fd = fd;
    if (watch_conn(v, fd, on_readable) < 0)
        hang_up(v, "vhost-user: the connection cannot be watched");
    else if (v->ev && v->ev->connected)
        v->ev->connected(v->ctx);
}

static int vhost_user_make(struct vhost_user **ret, struct loop *l, struct virtio_dev *dev, int fd,
                           loop_fn fn, const struct vhost_user_events *ev, void *ctx)
{
    AUTO_FREE struct vhost_user *v = calloc(1, sizeof(*v));
    if (!v)
        return -ENOMEM;
    v->loop = l;
    v->dev = dev;
    v->ev = ev;
    v->ctx = ctx;
    v->transport.interrupt = transport_interrupt;
    v->transport.broken = transport_broken;
    v->transport.kick_later = transport_kick_later;
    v->tell.fn = on_tell;
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        struct ring *r = &v->ring[i];
        r->v = v;
        r->index = i;
        r->call_fd = r->kick_fd = r->err_fd = r->kick.fd = -1;
        r->kick.fn = on_kick;
        r->later.fn = on_later;
    }
    int r = watch_conn(v, fd, fn);
    if (r < 0)
        return r;
    v->conn.fd = fd;
    virtio_dev_attach(dev, &v->transport);
    *ret = steal_ptr(&v);
    return 0;
}

int vhost_user_new(struct vhost_user **ret, struct loop *l, struct virtio_dev *dev, int listen_fd,
                   const struct vhost_user_events *ev, void *ctx)
{
    return vhost_user_make(ret, l, dev, listen_fd, on_accept, ev, ctx);
}

int vhost_user_new_connected(struct vhost_user **ret, struct loop *l, struct virtio_dev *dev,
                             int fd, const struct vhost_user_events *ev, void *ctx)
{
    return vhost_user_make(ret, l, dev, fd, on_readable, ev, ctx);
}

void vhost_user_take_eventfds(struct vhost_user *v)
{
    v->take_eventfds = true;
}

void vhost_user_free(struct vhost_user *v)
{
    if (!v)
        return;
    v->ev = NULL;
    hang_up(v, "vhost-user: closed");
    virtio_dev_detach(v->dev);
    loop_timer_off(v->loop, &v->tell);
    free(v);
}
