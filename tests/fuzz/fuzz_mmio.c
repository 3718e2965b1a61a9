/* virtio-mmio: a fuzzer that owns the register file and guest memory. The device's loop runs on a
 * thread of its own, as it does in the monitor. */
#include "fuzz_guest.h"

#include <linux/virtio_mmio.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "virtio/balloon.h"
#include "virtio/mmio.h"

struct machine {
    struct guest g;
    struct loop loop;
    struct loop_src stop;
    struct mmio *m;
    uint32_t *page;
    pthread_t thread;
};

static void on_stop(struct loop_src *src, uint32_t events)
{
    loop_stop(&CONTAINER_OF(src, struct machine, stop)->loop);
}

static void *loop_main(void *arg)
{
    (void)loop_run(&((struct machine *)arg)->loop);
    return NULL;
}

static void wr(struct machine *v, uint32_t off, uint32_t value)
{
    mmio_write(v->m, off, &value, sizeof(value));
}

/* As a driver does it, with a wrong number here and there. */
static void bring_up(struct machine *v, struct input *in)
{
    uint8_t how = in_u8(in);
    wr(v, VIRTIO_MMIO_STATUS, 0);
    wr(v, VIRTIO_MMIO_STATUS, 3);
    wr(v, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    wr(v, VIRTIO_MMIO_DRIVER_FEATURES, 1);
    wr(v, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    wr(v, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(how & 3) << 28 | (how & 4 ? in_u32(in) : 0));
    wr(v, VIRTIO_MMIO_STATUS, 11);
    for (unsigned q = 0; q < 3; q++) {
        struct virtq_config c = guest_ring(q);
        wr(v, VIRTIO_MMIO_QUEUE_SEL, q);
        wr(v, VIRTIO_MMIO_QUEUE_NUM, how & 8 ? in_u16(in) : c.size);
        wr(v, VIRTIO_MMIO_QUEUE_DESC_LOW, how & 16 ? in_u32(in) : (uint32_t)c.desc);
        wr(v, VIRTIO_MMIO_QUEUE_AVAIL_LOW, how & 32 ? in_u32(in) : (uint32_t)c.avail);
        wr(v, VIRTIO_MMIO_QUEUE_USED_LOW, how & 64 ? in_u32(in) : (uint32_t)c.used);
        wr(v, VIRTIO_MMIO_QUEUE_READY, 1);
    }
    wr(v, VIRTIO_MMIO_STATUS, 15);
}

static void access_any(struct machine *v, struct input *in, bool write)
{
    static const uint8_t widths[] = {4, 1, 2, 8};
    uint8_t how = in_u8(in), bytes[8] = {0};
    uint32_t off = how & 4 ? in_u16(in) : in_u8(in) * 4U;
    unsigned len = widths[how & 8 ? how & 3 : 0];
    (void)in_bytes(in, bytes, len);
    if (write)
        mmio_write(v->m, off, bytes, len);
    else
        mmio_read(v->m, off, bytes, len);
}

static void begin(struct machine *v, struct virtio_dev **d)
{
    memset(v, 0, sizeof(*v));
    guest_init(&v->g);
    v->page = aligned_alloc(64, MMIO_PAGE);
    v->stop = (struct loop_src){.fd = eventfd(0, EFD_CLOEXEC), .fn = on_stop};
    if (!v->page || v->stop.fd < 0 || loop_init(&v->loop) < 0 ||
        loop_add(&v->loop, &v->stop, EPOLLIN) < 0 || virtio_balloon_new(d) < 0)
        abort();
    memset(v->page, 0, MMIO_PAGE);
    if (mmio_new(&v->m, &v->loop, *d, &v->g.mem, v->page, NULL, NULL) < 0 ||
        pthread_create(&v->thread, NULL, loop_main, v) != 0)
        abort();
}

static void end(struct machine *v, struct virtio_dev *d)
{
    uint64_t one = 1;
    int fd = v->stop.fd;
    mmio_cancel(v->m);
    if (write(fd, &one, sizeof(one)) != (ssize_t)sizeof(one) || pthread_join(v->thread, NULL) != 0)
        abort();
    if (v->page[0] != 0x74726976 || v->page[2] != virtio_balloon_ops.id)
        abort();
    mmio_free(v->m);
    virtio_dev_free(d);
    loop_fini(&v->loop);
    (void)close(fd);
    free(v->page);
    guest_fini(&v->g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    static struct machine v;
    struct virtio_dev *d;
    begin(&v, &d);
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % 12;
        if (op < 5) /* memory only: the device is kicked by its register */
            guest_op(&v.g, &in, op, 3);
        else if (op == 5)
            bring_up(&v, &in);
        else if (op == 6)
            wr(&v, VIRTIO_MMIO_QUEUE_NOTIFY, in_u8(&in) % 4);
        else
            access_any(&v, &in, op != 7);
    }
    end(&v, d);
    return 0;
}
