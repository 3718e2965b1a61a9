/* See mmio.h. Register names and numbers are those of the virtio standard.
 *
 * Invariants, each with a test:
 *  1. `lock` guards the registers. No code of the device runs while it is held.
 *  2. At most one request is with the loop at a time. Meanwhile, only the loop changes registers.
 *  3. Once the device is live, its queue registers and features do not change until a reset.
 *  4. Words of the page are stored whole, so that a guest sees the old or the new value.
 *  5. Waiters wait for `request` to become NONE or for `canceled`; both are broadcast.
 */
#include "virtio/mmio.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "util/cleanup.h"

/* #syscalls:monitor,net write futex close */
/* #syscalls:vcpu write futex */

enum {
    MAGIC = 0x74726976, /* "virt" */
    VERSION = 2,
    VENDOR = 0x0062736d, /* "msb" */
    STATUS_DRIVER_BITS = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER |
                         VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FEATURES_OK |
                         VIRTIO_CONFIG_S_FAILED,
    CONFIG_WRITE_MAX = 8,
};

enum request { NONE, START, RESET, WRITE_CONFIG };

/* Plain data: everything that the driver has written. */
struct registers {
    uint32_t status;
    uint32_t device_features_sel, driver_features_sel;
    uint64_t driver_features;
    uint32_t queue_sel;
    struct {
        uint32_t size;
        bool ready;
        uint64_t desc, avail, used;
    } queue[VIRTIO_QUEUES_MAX];
};

struct queue_src {
    struct mmio *m;
    unsigned index;
    int fd;
    struct loop_src kick;
    struct loop_timer later;
};

struct mmio {
    struct loop *loop;
    struct virtio_dev *dev;
    const struct guest_mem *mem;
    uint32_t *page;
    const struct mmio_events *ev;
    void *ctx;
    struct virtio_transport transport;
    int irq_fd, call_fd;
    struct loop_src call; /* there is a request */
    struct loop_timer tell;
    const char *broken;
    bool resetting; /* the device has not settled yet; used by the loop only */
    struct queue_src queue[VIRTIO_QUEUES_MAX];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct registers r;
    bool live; /* the device was started */
    bool canceled;
    enum request request;
    uint32_t config_off, config_len; /* of WRITE_CONFIG */
    uint8_t config[CONFIG_WRITE_MAX];
    struct mmio_stats stats;
};

/* --- the page ------------------------------------------------------------------------------- */

static void show_word(struct mmio *m, unsigned off, uint32_t value)
{
    __atomic_store_n(&m->page[off / 4], value, __ATOMIC_RELAXED);
}

static void show_features(struct mmio *m)
{
    uint32_t sel = m->r.device_features_sel;
    show_word(m, VIRTIO_MMIO_DEVICE_FEATURES,
              sel > 1 ? 0 : (uint32_t)(m->dev->features >> (32 * sel)));
}

static void show_queue(struct mmio *m)
{
    uint32_t sel = m->r.queue_sel;
    bool exists = sel < m->dev->ops->n_queues;
    show_word(m, VIRTIO_MMIO_QUEUE_NUM_MAX, exists ? VIRTQ_SIZE_MAX : 0);
    show_word(m, VIRTIO_MMIO_QUEUE_READY, exists && m->r.queue[sel].ready);
}

static void show_config(struct mmio *m)
{
    for (uint32_t off = 0; off < m->dev->config_len && off < MMIO_PAGE - VIRTIO_MMIO_CONFIG;
         off += 4) {
        uint32_t word;
        virtio_dev_config_read(m->dev, off, &word, sizeof(word));
        show_word(m, VIRTIO_MMIO_CONFIG + off, word);
    }
}

static void show_all(struct mmio *m)
{
    show_word(m, VIRTIO_MMIO_MAGIC_VALUE, MAGIC);
    show_word(m, VIRTIO_MMIO_VERSION, VERSION);
    show_word(m, VIRTIO_MMIO_DEVICE_ID, m->dev->ops->id);
    show_word(m, VIRTIO_MMIO_VENDOR_ID, VENDOR);
    /* Length of a shared memory region that does not exist. */
    show_word(m, VIRTIO_MMIO_SHM_LEN_LOW, UINT32_MAX);
    show_word(m, VIRTIO_MMIO_SHM_LEN_HIGH, UINT32_MAX);
    show_word(m, VIRTIO_MMIO_SHM_BASE_LOW, UINT32_MAX);
    show_word(m, VIRTIO_MMIO_SHM_BASE_HIGH, UINT32_MAX);
    show_word(m, VIRTIO_MMIO_STATUS, m->r.status);
    show_features(m);
    show_queue(m);
    show_config(m);
}

static void forget_driver(struct mmio *m)
{
    m->r = (struct registers){0};
    show_word(m, VIRTIO_MMIO_INTERRUPT_STATUS, 0);
    show_word(m, VIRTIO_MMIO_STATUS, 0);
    show_features(m);
    show_queue(m);
}

static void set_status(struct mmio *m, uint32_t status)
{
    m->r.status = status;
    show_word(m, VIRTIO_MMIO_STATUS, status);
}

/* --- what the device asks of us: on its loop ------------------------------------------------- */

static void interrupt(struct mmio *m, uint32_t bit)
{
    static const uint64_t one = 1;
    (void)__atomic_fetch_or(&m->page[VIRTIO_MMIO_INTERRUPT_STATUS / 4], bit, __ATOMIC_RELEASE);
    (void)!write(m->irq_fd, &one, sizeof(one));
}

static void transport_interrupt(struct virtio_transport *t, unsigned queue)
{
    interrupt(CONTAINER_OF(t, struct mmio, transport), VIRTIO_MMIO_INT_VRING);
}

static void transport_broken(struct virtio_transport *t, const char *reason)
{
    struct mmio *m = CONTAINER_OF(t, struct mmio, transport);
    m->broken = reason;
    (void)pthread_mutex_lock(&m->lock);
    set_status(m, m->r.status | VIRTIO_CONFIG_S_NEEDS_RESET);
    (void)pthread_mutex_unlock(&m->lock);
    interrupt(m, VIRTIO_MMIO_INT_CONFIG);
    loop_timer_set(m->loop, &m->tell, 0);
}

static void transport_kick_later(struct virtio_transport *t, unsigned queue, uint64_t delay_ns)
{
    struct mmio *m = CONTAINER_OF(t, struct mmio, transport);
    loop_timer_by(m->loop, &m->queue[queue].later, delay_ns);
}

static void on_tell(struct loop_timer *t)
{
    struct mmio *m = CONTAINER_OF(t, struct mmio, tell);
    if (m->broken && m->ev && m->ev->broken)
        m->ev->broken(m->ctx, m->broken);
}

/* The eventfd is watched edge-triggered and never read: a storm of kicks is one event per turn. */
static void on_kick(struct loop_src *src, uint32_t events)
{
    struct queue_src *q = CONTAINER_OF(src, struct queue_src, kick);
    virtio_dev_kick(q->m->dev, q->index);
}

static void on_later(struct loop_timer *t)
{
    struct queue_src *q = CONTAINER_OF(t, struct queue_src, later);
    virtio_dev_kick(q->m->dev, q->index);
}

/* --- requests: on the loop ------------------------------------------------------------------ */

static bool served_elsewhere(const struct mmio *m)
{
    return m->dev->ops->wire != NULL;
}

/* Fails by breaking the device, which the driver sees. */
static void start_device(struct mmio *m, const struct registers *r)
{
    (void)virtio_dev_set_features(m->dev, r->driver_features);
    if (served_elsewhere(m)) /* its process cannot write to the page */
        show_word(m, VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_INT_VRING);
    for (unsigned i = 0; i < m->dev->ops->n_queues; i++) {
        struct virtq_config c = {.desc = r->queue[i].desc,
                                 .avail = r->queue[i].avail,
                                 .used = r->queue[i].used,
                                 .size = (uint16_t)MIN(r->queue[i].size, UINT16_MAX)};
        if (r->queue[i].ready)
            (void)virtio_dev_start_queue(m->dev, i, m->mem, &c);
    }
}

static void reset_device(struct mmio *m)
{
    for (unsigned i = 0; i < m->dev->ops->n_queues; i++) {
        loop_timer_off(m->loop, &m->queue[i].later);
        virtio_dev_stop_queue(m->dev, i);
    }
    (void)virtio_dev_set_features(m->dev, 0);
    m->broken = NULL;
}

static void request_done(struct mmio *m, enum request request)
{
    if (request != WRITE_CONFIG && m->ev && m->ev->live)
        m->ev->live(m->ctx, request == START);

    (void)pthread_mutex_lock(&m->lock);
    if (request == START) {
        m->live = true;
        set_status(m, m->r.status | VIRTIO_CONFIG_S_DRIVER_OK);
    } else if (request == RESET) {
        m->live = false;
        forget_driver(m);
    } else {
        show_config(m);
    }
    m->request = NONE;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
}

static void on_call(struct loop_src *src, uint32_t events)
{
    struct mmio *m = CONTAINER_OF(src, struct mmio, call);
    (void)pthread_mutex_lock(&m->lock);
    enum request request = m->request;
    struct registers r = m->r;
    (void)pthread_mutex_unlock(&m->lock);

    if (request == START)
        start_device(m, &r);
    else if (request == RESET)
        reset_device(m);
    else if (request == WRITE_CONFIG)
        (void)virtio_dev_config_write(m->dev, m->config_off, m->config, m->config_len);
    else
        return;
    m->resetting = request == RESET && served_elsewhere(m) && m->dev->ops->busy(m->dev);
    if (!m->resetting)
        request_done(m, request);
}

static void transport_settled(struct virtio_transport *t)
{
    struct mmio *m = CONTAINER_OF(t, struct mmio, transport);
    if (m->resetting) /* else the driver did not request the reset */
        request_done(m, RESET);
    m->resetting = false;
}

/* --- the driver's writes: on any thread ------------------------------------------------------ */

static void wait_for_loop(struct mmio *m)
{
    while (m->request != NONE && !m->canceled)
        (void)pthread_cond_wait(&m->changed, &m->lock);
}

static void ask_loop(struct mmio *m, enum request request)
{
    static const uint64_t one = 1;
    m->request = request;
    (void)!write(m->call_fd, &one, sizeof(one));
    wait_for_loop(m);
}

static void write_status(struct mmio *m, uint32_t v)
{
    if (v == 0) {
        if (m->live)
            ask_loop(m, RESET);
        else
            forget_driver(m);
        return;
    }
    /* Bits are only ever added; those that the driver leaves out stay set. */
    uint32_t add = v & STATUS_DRIVER_BITS & ~m->r.status;
    if (add & VIRTIO_CONFIG_S_FEATURES_OK && ((m->r.driver_features & ~m->dev->features) != 0 ||
                                              !(m->r.driver_features >> VIRTIO_F_VERSION_1 & 1)))
        add &= ~(uint32_t)(VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);
    bool start = add & VIRTIO_CONFIG_S_DRIVER_OK;
    set_status(m, m->r.status | (add & ~(uint32_t)VIRTIO_CONFIG_S_DRIVER_OK));
    if (start && m->r.status & VIRTIO_CONFIG_S_FEATURES_OK && !m->live)
        ask_loop(m, START);
    else if (start)
        m->stats.ignored++;
}

static void set_half(uint64_t *to, bool high, uint32_t v)
{
    if (high)
        *to = (uint32_t)*to | (uint64_t)v << 32;
    else
        *to = (*to >> 32) << 32 | v;
}

/* False: no such queue, or not now. */
static bool write_queue(struct mmio *m, uint64_t off, uint32_t v)
{
    if (m->live || m->r.queue_sel >= m->dev->ops->n_queues)
        return false;
    __typeof__(&m->r.queue[0]) q = &m->r.queue[m->r.queue_sel];
    if (off == VIRTIO_MMIO_QUEUE_READY) {
        q->ready = v & 1;
        show_queue(m);
        return true;
    }
    if (q->ready)
        return false;
    switch (off) {
    case VIRTIO_MMIO_QUEUE_NUM:
        q->size = v;
        return true;
    case VIRTIO_MMIO_QUEUE_DESC_LOW:
    case VIRTIO_MMIO_QUEUE_DESC_HIGH:
        set_half(&q->desc, off == VIRTIO_MMIO_QUEUE_DESC_HIGH, v);
        return true;
    case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
    case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
        set_half(&q->avail, off == VIRTIO_MMIO_QUEUE_AVAIL_HIGH, v);
        return true;
    case VIRTIO_MMIO_QUEUE_USED_LOW:
    case VIRTIO_MMIO_QUEUE_USED_HIGH:
        set_half(&q->used, off == VIRTIO_MMIO_QUEUE_USED_HIGH, v);
        return true;
    default:
        return false;
    }
}

static bool write_features(struct mmio *m, uint32_t v)
{
    if (m->r.status & VIRTIO_CONFIG_S_FEATURES_OK || m->r.driver_features_sel > 1)
        return false;
    set_half(&m->r.driver_features, m->r.driver_features_sel == 1, v);
    return true;
}

static bool kick_queue(struct mmio *m, uint32_t queue)
{
    static const uint64_t one = 1;
    if (queue >= m->dev->ops->n_queues)
        return false;
    (void)!write(m->queue[queue].fd, &one, sizeof(one));
    return true;
}

static bool write_register(struct mmio *m, uint64_t off, uint32_t v)
{
    switch (off) {
    case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
        m->r.device_features_sel = v;
        show_features(m);
        return true;
    case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
        m->r.driver_features_sel = v;
        return true;
    case VIRTIO_MMIO_DRIVER_FEATURES:
        return write_features(m, v);
    case VIRTIO_MMIO_QUEUE_SEL:
        m->r.queue_sel = v;
        show_queue(m);
        return true;
    case VIRTIO_MMIO_QUEUE_NOTIFY:
        return kick_queue(m, v);
    case VIRTIO_MMIO_INTERRUPT_ACK:
        if (served_elsewhere(m))
            v &= ~(uint32_t)VIRTIO_MMIO_INT_VRING;
        (void)__atomic_fetch_and(&m->page[VIRTIO_MMIO_INTERRUPT_STATUS / 4], ~v, __ATOMIC_ACQ_REL);
        return true;
    case VIRTIO_MMIO_STATUS:
        write_status(m, v);
        return true;
    default:
        return write_queue(m, off, v);
    }
}

static bool write_config(struct mmio *m, uint64_t off, const void *p, unsigned len)
{
    if (off >= m->dev->config_len || len > m->dev->config_len - off || len > CONFIG_WRITE_MAX)
        return false;
    m->config_off = (uint32_t)off;
    m->config_len = len;
    memcpy(m->config, p, len);
    ask_loop(m, WRITE_CONFIG);
    return true;
}

void mmio_write(struct mmio *m, uint64_t off, const void *p, unsigned len)
{
    uint32_t v;
    bool good = false;
    (void)pthread_mutex_lock(&m->lock);
    wait_for_loop(m);
    m->stats.writes++;
    if (m->canceled) {
        good = true;
    } else if (off >= VIRTIO_MMIO_CONFIG) {
        good = write_config(m, off - VIRTIO_MMIO_CONFIG, p, len);
    } else if (len == sizeof(v) && off % sizeof(v) == 0) {
        memcpy(&v, p, sizeof(v));
        good = write_register(m, off, v);
    }
    m->stats.ignored += !good;
    (void)pthread_mutex_unlock(&m->lock);
}

void mmio_read(const struct mmio *m, uint64_t off, void *p, unsigned len)
{
    memset(p, 0xff, len);
    if (off > MMIO_PAGE || len > MMIO_PAGE - off)
        return;
    for (unsigned i = 0; i < len; i++) {
        uint64_t at = off + i;
        uint32_t word = __atomic_load_n(&m->page[at / 4], __ATOMIC_ACQUIRE);
        ((uint8_t *)p)[i] = (uint8_t)(word >> at % 4 * 8);
    }
}

void mmio_cancel(struct mmio *m)
{
    (void)pthread_mutex_lock(&m->lock);
    m->canceled = true;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
}

void mmio_stats(struct mmio *m, struct mmio_stats *ret)
{
    (void)pthread_mutex_lock(&m->lock);
    *ret = m->stats;
    (void)pthread_mutex_unlock(&m->lock);
}

int mmio_kick_fd(const struct mmio *m, unsigned queue)
{
    return m->queue[queue].fd;
}

int mmio_irq_fd(const struct mmio *m)
{
    return m->irq_fd;
}

/* --- life ----------------------------------------------------------------------------------- */

static int new_eventfd(int *fd)
{
    *fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return *fd < 0 ? -errno : 0;
}

static int watch(struct mmio *m, struct loop_src *src, int *fd, loop_fn fn)
{
    int r = new_eventfd(fd);
    if (r < 0)
        return r;
    *src = (struct loop_src){.fd = *fd, .fn = fn};
    r = loop_add(m->loop, src, EPOLLIN | EPOLLET);
    if (r < 0)
        src->fd = -1;
    return r;
}

static int wire_device(struct mmio *m)
{
    int fds[VIRTIO_QUEUES_MAX];
    int r = 0;
    for (unsigned i = 0; r == 0 && i < m->dev->ops->n_queues; i++) {
        r = new_eventfd(&m->queue[i].fd);
        fds[i] = m->queue[i].fd;
    }
    return r < 0 ? r : m->dev->ops->wire(m->dev, fds, m->irq_fd);
}

static int open_fds(struct mmio *m)
{
    int r = new_eventfd(&m->irq_fd);
    if (r == 0)
        r = watch(m, &m->call, &m->call_fd, on_call);
    if (r == 0 && served_elsewhere(m))
        return wire_device(m);
    for (unsigned i = 0; r == 0 && i < m->dev->ops->n_queues; i++)
        r = watch(m, &m->queue[i].kick, &m->queue[i].fd, on_kick);
    return r;
}

int mmio_new(struct mmio **ret, struct loop *l, struct virtio_dev *dev, const struct guest_mem *mem,
             void *page, const struct mmio_events *ev, void *ctx)
{
    struct mmio *m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct mmio){.loop = l,
                       .dev = dev,
                       .mem = mem,
                       .page = page,
                       .ev = ev,
                       .ctx = ctx,
                       .irq_fd = -1,
                       .call_fd = -1,
                       .call.fd = -1,
                       .tell.fn = on_tell,
                       .transport = {.interrupt = transport_interrupt,
                                     .broken = transport_broken,
                                     .kick_later = transport_kick_later,
                                     .settled = transport_settled}};
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_cond_init(&m->changed, NULL);
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        struct queue_src *q = &m->queue[i];
        *q = (struct queue_src){.m = m, .index = i, .fd = -1, .kick.fd = -1, .later.fn = on_later};
    }
    virtio_dev_attach(dev, &m->transport);
    int r = open_fds(m);
    if (r < 0) {
        mmio_free(m);
        return r;
    }
    show_all(m);
    *ret = m;
    return 0;
}

void mmio_free(struct mmio *m)
{
    if (!m)
        return;
    virtio_dev_detach(m->dev);
    loop_timer_off(m->loop, &m->tell);
    loop_del(m->loop, &m->call);
    close_fd(&m->call_fd);
    close_fd(&m->irq_fd);
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        loop_timer_off(m->loop, &m->queue[i].later);
        loop_del(m->loop, &m->queue[i].kick);
        close_fd(&m->queue[i].fd);
    }
    (void)pthread_cond_destroy(&m->changed);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}
