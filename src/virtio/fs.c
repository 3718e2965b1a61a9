#include "virtio/fs.h"

#include <errno.h>
#include <linux/virtio_fs.h>
#include <linux/virtio_ids.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/loop.h"

struct fs_dev {
    struct virtio_dev dev;
    struct virtio_fs_config config;
    struct fuse_server *server;
    struct virtq_chain chain;
    struct {
        uint16_t queue, head;
    } parked[VIRTQ_SIZE_MAX]; /* requests waiting for content */
    unsigned n_parked;
};

static void park(struct fs_dev *f, unsigned queue)
{
    if (f->n_parked == ARRAY_LEN(f->parked)) {
        virtio_dev_break(&f->dev, "fs: more requests than the queue holds");
        return;
    }
    f->parked[f->n_parked].queue = (uint16_t)queue;
    f->parked[f->n_parked++].head = f->chain.head;
}

/* Serves the request in f->chain and gives it back; returns the bytes moved. */
static size_t serve(struct virtio_dev *d, unsigned queue)
{
    struct fs_dev *f = CONTAINER_OF(d, struct fs_dev, dev);
    const struct virtq_chain *c = &f->chain;
    struct fuse_request q = {.out = virtq_out(c),
                             .n_out = c->n_out,
                             .out_len = c->out_len,
                             .in = virtq_in(c),
                             .n_in = c->n_in,
                             .in_len = c->in_len};
    ssize_t n = fuse_serve(f->server, &q);
    if (n == -EINPROGRESS) {
        park(f, queue);
        return c->out_len;
    }
    if (n < 0) {
        virtio_dev_break(d, "fs: a request without a header, or without room for a reply");
        return 0;
    }
    virtq_push(&d->vq[queue], c, (uint32_t)n);
    return c->out_len + (size_t)n;
}

static int64_t fs_kick(struct virtio_dev *d, unsigned queue)
{
    return virtio_dev_serve(d, queue, &CONTAINER_OF(d, struct fs_dev, dev)->chain, serve);
}

void virtio_fs_resume(struct virtio_dev *d)
{
    struct fs_dev *f = CONTAINER_OF(d, struct fs_dev, dev);
    unsigned n = f->n_parked;
    f->n_parked = 0;
    for (unsigned i = 0; i < n && !d->broken; i++) { /* those that park again come before i */
        unsigned queue = f->parked[i].queue;
        int r = virtq_again(&d->vq[queue], f->parked[i].head, &f->chain);
        if (r < 0)
            virtio_dev_break(d, d->vq[queue].broken);
        if (r <= 0)
            continue;
        (void)serve(d, queue);
        virtio_dev_interrupt(d, queue);
    }
}

static void fs_dev_reset(struct virtio_dev *d)
{
    struct fs_dev *f = CONTAINER_OF(d, struct fs_dev, dev);
    f->n_parked = 0;
    fuse_reset(f->server);
}

static void fs_dev_free(struct virtio_dev *d)
{
    struct fs_dev *f = CONTAINER_OF(d, struct fs_dev, dev);
    fuse_free(f->server);
    free(f);
}

const struct virtio_dev_ops virtio_fs_ops = {
    .name = "fs",
    .id = VIRTIO_ID_FS,
    .n_queues = 2,
    .kick = fs_kick,
    .reset = fs_dev_reset,
    .free = fs_dev_free,
};

void virtio_fs_tag(size_t index, char out[VIRTIO_FS_TAG_TEXT])
{
    (void)snprintf(out, VIRTIO_FS_TAG_TEXT, "msb%zu", index);
}

int virtio_fs_new(struct virtio_dev **ret, struct fuse_server *server, const char *tag)
{
    size_t n = strlen(tag);
    if (n == 0 || n > FS_TAG_MAX)
        return -EINVAL;
    struct fs_dev *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    _Static_assert(sizeof(f->config.tag) == FS_TAG_MAX, "tag length");
    for (size_t i = 0; i < n; i++) /* not a string: it may fill the field */
        f->config.tag[i] = (uint8_t)tag[i];
    f->config.num_request_queues = 1;
    f->server = server;
    f->dev.ops = &virtio_fs_ops;
    f->dev.features = VIRTIO_BASE_FEATURES;
    f->dev.config = &f->config;
    f->dev.config_len = sizeof(f->config);
    *ret = &f->dev;
    return 0;
}
