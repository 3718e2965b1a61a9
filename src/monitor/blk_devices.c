#include "monitor/blk_devices.h"

#include "proto/proto.h"
#include "util/cleanup.h"
#include "virtio/blk.h"
#include "virtio/qcow2.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct set {
    struct engine_params *ep;
    const struct monitor_params *p;
    struct loop *loop;
};

static int add_segments(const struct set *s, const struct blk_segment *seg, size_t n,
                        bool read_only, const char *serial, struct err *e)
{
    assert(s->ep->n_devices < ENGINE_DEVICES_MAX);
    struct engine_device *d = &s->ep->devices[s->ep->n_devices];
    int r = virtio_blk_new(&d->dev, seg, n, read_only, serial);
    if (r < 0)
        return err_sys(e, -r, "cannot serve disk %s", serial);
    d->loop = s->loop;
    s->ep->n_devices++;
    return 0;
}

static int add_disk(const struct set *s, int fd, bool read_only, const char *serial, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot stat disk %s", serial);
    struct blk_segment seg = {.fd = fd, .length = (uint64_t)st.st_size};
    return add_segments(s, &seg, 1, read_only, serial, e);
}

/* One disk, however many files it has: merged metadata first, then the layers. */
static int add_image(const struct set *s, struct err *e)
{
    const struct image_disk *d = &s->p->image;
    struct blk_segment seg[ARRAY_LEN(d->fd)];
    for (size_t i = 0; i < d->n; i++)
        seg[i] = (struct blk_segment){.fd = d->fd[i], .length = d->length[i]};
    return add_segments(s, seg, d->n, true, "msb-image", e);
}

static int add_qcow2(const struct set *s, int fd, const char *source, const char *serial,
                     struct err *e)
{
    struct blk_segment *seg = NULL;
    const char *why = NULL;
    size_t n = 0;
    int r = qcow2_segments(fd, &seg, &n, &why);
    if (r < 0)
        return err_hinted(e, err_set(e, -r, "cannot mount '%s': %s", source, why),
                          "convert it: qemu-img convert -O raw %s %s.raw", source, source);
    r = add_segments(s, seg, n, true, serial, e);
    free(seg);
    return r;
}

/* They come after the sandbox's own. */
static int add_mounted_disks(const struct set *s, struct err *e)
{
    int r = 0;
    for (size_t i = 0, n = 0; r == 0 && i < s->p->spec->n_mounts; i++) {
        const struct spec_mount *mount = &s->p->spec->mounts[i];
        if (!mount_is_disk(mount))
            continue;
        char serial[BLK_SERIAL_LEN];
        (void)snprintf(serial, sizeof(serial), "msb-disk%zu", n);
        int fd = s->p->disk_fd[n++];
        r = mount->qcow2 ? add_qcow2(s, fd, mount->source, serial, e)
                         : add_disk(s, fd, mount->options & PROTO_MOUNT_RO, serial, e);
    }
    return r;
}

int blk_devices(struct engine_params *ep, const struct monitor_params *p, struct loop *loop,
                struct err *e)
{
    const struct set s = {.ep = ep, .p = p, .loop = loop};
    int r = add_disk(&s, p->tools_fd, true, "msb-tools", e);
    if (r == 0 && !p->spec->root_share)
        r = add_image(&s, e);
    if (r == 0 && p->upper_fd >= 0) {
        r = add_disk(&s, p->upper_fd, false, "msb-upper", e);
        if (r == 0 && spec_disk_sync(p->spec) == DISK_SYNC_NEVER)
            virtio_blk_never_sync(ep->devices[ep->n_devices - 1].dev);
    }
    return r < 0 ? r : add_mounted_disks(&s, e);
}
