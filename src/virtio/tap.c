#include "virtio/tap.h"

#include "util/iov.h"
#include "virtio/queue.h"

#include <errno.h>
#include <linux/virtio_net.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* #syscalls:monitor read writev */

enum { HDR_LEN = sizeof(struct virtio_net_hdr), FRAMES_PER_EVENT = 64 };

struct tap {
    struct loop *loop;
    struct loop_src src; /* fd -1: the device is gone */
    struct link *card;
    size_t held; /* bytes in frame[] that wait for room, the header included */
    uint8_t frame[HDR_LEN + LINK_FRAME_MAX];
};

/* --- from the guest -------------------------------------------------------------------------- */

static void on_input(void *ctx, const struct link_offload *o, const struct iovec *iov, unsigned n,
                     size_t len)
{
    static const uint8_t gso[] = {
        [LINK_GSO_NONE] = VIRTIO_NET_HDR_GSO_NONE,
        [LINK_GSO_TCP4] = VIRTIO_NET_HDR_GSO_TCPV4,
        [LINK_GSO_TCP6] = VIRTIO_NET_HDR_GSO_TCPV6,
    };
    const struct tap *t = ctx;
    struct virtio_net_hdr h = {.flags = o->csum ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0,
                               .gso_type = gso[o->gso],
                               .gso_size = o->gso_size,
                               .csum_start = o->csum_start,
                               .csum_offset = o->csum_offset};
    struct iovec all[1 + VIRTQ_CHAIN_MAX] = {{.iov_base = &h, .iov_len = sizeof(h)}};
    unsigned k = iov_slice(all + 1, VIRTQ_CHAIN_MAX, iov, n, 0, len);
    if (t->src.fd >= 0)
        (void)!writev(t->src.fd, all, (int)k + 1);
}

static void on_input_end(void *ctx)
{
}

/* --- to the guest ---------------------------------------------------------------------------- */

/* False for offloads that this driver did not negotiate. */
static bool read_header(const struct tap *t, size_t len, struct link_offload *o)
{
    struct virtio_net_hdr h;
    unsigned caps = t->card->caps;
    memcpy(&h, t->frame, sizeof(h));
    *o = (struct link_offload){.csum = h.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .csum_start = h.csum_start,
                               .csum_offset = h.csum_offset};
    if (o->csum && !(caps & LINK_CSUM))
        return false;
    if (h.gso_type == VIRTIO_NET_HDR_GSO_NONE)
        return len >= LINK_ETH;
    o->gso = h.gso_type == VIRTIO_NET_HDR_GSO_TCPV4 ? LINK_GSO_TCP4 : LINK_GSO_TCP6;
    o->gso_size = h.gso_size;
    o->hdr_len = h.hdr_len;
    return (caps & LINK_ANY_SIZE) &&
           ((h.gso_type == VIRTIO_NET_HDR_GSO_TCPV4 && (caps & LINK_TSO4)) ||
            (h.gso_type == VIRTIO_NET_HDR_GSO_TCPV6 && (caps & LINK_TSO6)));
}

/* Delivers the held frame; false if there is no room for it. */
static bool deliver(struct tap *t)
{
    struct link *l = t->card;
    const struct iovec *iov;
    struct link_offload o;
    unsigned n;
    size_t len = t->held - HDR_LEN;
    if (!read_header(t, len, &o)) {
        t->held = 0;
        return true;
    }
    if (l->ops->reserve(l, len, len, &iov, &n) < len)
        return false;
    (void)iov_write(iov, n, 0, t->frame + HDR_LEN, len);
    l->ops->commit(l, &o, len);
    t->held = 0;
    return true;
}

/* A device that was removed, perhaps with its namespace, would report that forever. */
static void gone(struct tap *t)
{
    if (t->src.fd >= 0)
        loop_del(t->loop, &t->src);
    t->src.fd = -1;
}

static void pump(struct tap *t)
{
    bool room = t->held == 0 || deliver(t);
    for (unsigned i = 0; room && i < FRAMES_PER_EVENT; i++) {
        ssize_t k = read(t->src.fd, t->frame, sizeof(t->frame));
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            gone(t);
        if (k <= HDR_LEN)
            break;
        t->held = (size_t)k;
        room = deliver(t);
    }
    t->card->ops->flush(t->card);
    if (t->src.fd >= 0)
        (void)loop_mod(t->loop, &t->src, room ? EPOLLIN : 0);
}

static void on_tap(struct loop_src *src, uint32_t events)
{
    struct tap *t = CONTAINER_OF(src, struct tap, src);
    if (events & EPOLLIN)
        pump(t);
    else
        gone(t);
}

static void on_room(void *ctx)
{
    struct tap *t = ctx;
    if (t->src.fd >= 0)
        pump(t);
}

/* --- life ------------------------------------------------------------------------------------ */

/* A new driver gets an empty queue, whatever the last one left in it. */
static void on_reset(void *ctx)
{
    struct tap *t = ctx;
    t->held = 0;
    if (t->src.fd >= 0)
        (void)loop_mod(t->loop, &t->src, EPOLLIN);
}

static const struct link_user user = {on_input, on_input_end, on_room, on_reset};

int tap_new(struct tap **ret, struct loop *loop, struct link *card, int fd)
{
    struct tap *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->loop = loop;
    t->card = card;
    t->src = (struct loop_src){.fd = fd, .fn = on_tap};
    int r = loop_add(loop, &t->src, EPOLLIN);
    if (r < 0) {
        free(t);
        return r;
    }
    card->user = &user;
    card->ctx = t;
    *ret = t;
    return 0;
}

void tap_free(struct tap *t)
{
    if (!t)
        return;
    gone(t);
    t->card->user = NULL;
    free(t);
}
