#include "virtio/device.h"

#include <assert.h>
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "util/cleanup.h"

enum { TURN_REQUESTS = 64, TURN_BYTES = 16 << 20 }; /* work in one turn of the loop */

void virtio_dev_attach(struct virtio_dev *d, struct virtio_transport *t)
{
    assert(!d->transport && d->ops->n_queues <= VIRTIO_QUEUES_MAX);
    d->transport = t;
}

void virtio_dev_detach(struct virtio_dev *d)
{
    for (unsigned i = 0; i < d->ops->n_queues; i++)
        virtio_dev_stop_queue(d, i);
    d->transport = NULL;
    d->acked = 0;
}

bool virtio_dev_running(const struct virtio_dev *d)
{
    for (unsigned i = 0; i < d->ops->n_queues; i++)
        if (d->vq[i].running)
            return true;
    return false;
}

int virtio_dev_set_features(struct virtio_dev *d, uint64_t acked)
{
    if (virtio_dev_running(d)) {
        d->ignored++;
        return -EBUSY;
    }
    if (acked & ~d->features)
        return -EINVAL;
    d->acked = acked;
    return 0;
}

int virtio_dev_start_queue(struct virtio_dev *d, unsigned queue, const struct guest_mem *mem,
                           const struct virtq_config *cfg)
{
    if (queue >= d->ops->n_queues)
        return -EINVAL;
    struct virtq *q = &d->vq[queue];
    if (q->running) {
        d->ignored++;
        return -EBUSY;
    }
    if (d->broken)
        return -EPROTO;
    if (!virtio_dev_has(d, VIRTIO_F_VERSION_1)) {
        virtio_dev_break(d, "device: the driver is a legacy driver");
        return -EINVAL;
    }
    struct virtq_config c = *cfg;
    c.event_idx = virtio_dev_has(d, VIRTIO_RING_F_EVENT_IDX);
    c.indirect = virtio_dev_has(d, VIRTIO_RING_F_INDIRECT_DESC);
    const char *why;
    int r = virtq_start(q, mem, &c, &why);
    if (r < 0) {
        virtio_dev_break(d, why);
        return r;
    }
    virtio_dev_kick(d, queue);
    return 0;
}

void virtio_dev_stop_queue(struct virtio_dev *d, unsigned queue)
{
    if (queue >= d->ops->n_queues)
        return;
    bool was = virtio_dev_running(d);
    virtq_stop(&d->vq[queue]);
    if (virtio_dev_running(d))
        return;
    if (was && d->ops->reset)
        d->ops->reset(d);
    d->broken = NULL;
}

void virtio_dev_kick(struct virtio_dev *d, unsigned queue)
{
    if (queue >= d->ops->n_queues || !d->vq[queue].running || d->broken)
        return;
    int64_t again = d->ops->kick(d, queue);
    if (again >= 0 && !d->broken && d->transport)
        d->transport->kick_later(d->transport, queue, (uint64_t)again);
}

void virtio_dev_config_read(const struct virtio_dev *d, uint32_t off, void *p, uint32_t len)
{
    memset(p, 0, len);
    if (off < d->config_len)
        memcpy(p, (const uint8_t *)d->config + off, MIN(len, d->config_len - off));
}

int virtio_dev_config_write(struct virtio_dev *d, uint32_t off, const void *p, uint32_t len)
{
    if (off > d->config_len || len > d->config_len - off)
        return -ERANGE;
    if (d->ops->config_written)
        d->ops->config_written(d, off, p, len);
    return 0;
}

int virtio_dev_pop(struct virtio_dev *d, unsigned queue, struct virtq_chain *c)
{
    assert(queue < d->ops->n_queues);
    if (d->broken)
        return -EPROTO;
    int r = virtq_pop(&d->vq[queue], c);
    if (r < 0)
        virtio_dev_break(d, d->vq[queue].broken);
    return r;
}

int64_t virtio_dev_serve(struct virtio_dev *d, unsigned queue, struct virtq_chain *c,
                         virtio_serve_fn serve)
{
    struct virtq *q = &d->vq[queue];
    size_t bytes = 0;
    unsigned requests = 0;
    int r;
    do {
        virtq_notify_off(q);
        while ((r = virtio_dev_pop(d, queue, c)) > 0) {
            bytes += serve(d, queue);
            /* At once: the guest works on this one while we serve the next. The event index keeps
             * this from causing an interrupt for each. */
            virtio_dev_interrupt(d, queue);
            if (++requests == TURN_REQUESTS || bytes >= TURN_BYTES)
                return 0;
        }
    } while (r == 0 && virtq_notify_on(q));
    return VIRTIO_IDLE;
}

void virtio_dev_interrupt(struct virtio_dev *d, unsigned queue)
{
    if (!d->broken && d->transport && virtq_should_interrupt(&d->vq[queue]))
        d->transport->interrupt(d->transport, queue);
}

void virtio_dev_break(struct virtio_dev *d, const char *reason)
{
    if (d->broken)
        return;
    d->broken = reason;
    for (unsigned i = 0; i < d->ops->n_queues; i++)
        if (d->vq[i].running && !d->vq[i].broken)
            d->vq[i].broken = reason;
    if (d->transport)
        d->transport->broken(d->transport, reason);
}

void virtio_dev_free(struct virtio_dev *d)
{
    assert(!d || !d->transport);
    if (d)
        d->ops->free(d);
}
