/* The socket device: a hostile guest on one side, an owner that does everything its interface
 * allows, at any time and from inside any callback, on the other. */
#include "fuzz_guest.h"

#include <linux/virtio_vsock.h>

#include "virtio/vsock.h"

enum { SLOTS = 8, PACKET = 32 * 1024 };

/* One stream as its owner knows it. */
struct slot {
    struct vsock_stream *s;
    bool connected, told_shutdown;
};

static struct slot slots[SLOTS];
static struct input *input; /* callbacks draw from it too */
static struct virtio_dev *dev;
static unsigned depth;

static const struct vsock_stream_ops ops;

static struct slot *free_slot(void)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (!slots[i].s)
            return &slots[i];
    return NULL;
}

static void owner_op(uint8_t op)
{
    static const uint8_t bytes[5000];
    struct slot *o = &slots[op >> 4 & (SLOTS - 1)];
    if (depth > 4)
        return;
    switch (op & 15) {
    case 0:
        if ((o = free_slot()) && (o->s = vsock_connect(dev, in_u8(input) & 3, &ops, o)))
            o->connected = false;
        break;
    case 1:
    case 2:
    case 3:
        if (o->s) {
            size_t n = in_u16(input) % sizeof(bytes);
            if (vsock_send_buf(o->s, bytes, n) > n)
                abort();
        }
        break;
    case 4:
    case 5:
    case 6:
        if (o->s)
            vsock_resume(o->s);
        break;
    case 7:
        if (o->s)
            vsock_shutdown(o->s, in_u8(input) & 3);
        break;
    case 8:
        if (o->s) {
            struct vsock_stream *s = o->s;
            *o = (struct slot){0};
            vsock_close(s);
        }
        break;
    case 9:
        if (o->s) {
            struct vsock_stream *s = o->s;
            *o = (struct slot){0};
            vsock_abort(s);
        }
        break;
    default:
        break;
    }
}

static void in_callback(struct slot *o, struct vsock_stream *s)
{
    if (!o->s || o->s != s)
        abort(); /* a callback after the end */
    if (vsock_held(s) > VSOCK_CREDIT)
        abort();
    depth++;
    owner_op(in_u8(input));
    depth--;
}

static void on_connected(struct vsock_stream *s, void *ctx)
{
    struct slot *o = ctx;
    if (o->connected)
        abort();
    o->connected = true;
    in_callback(o, s);
}

static size_t on_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    struct slot *o = ctx;
    if (n == 0 || o->told_shutdown || !o->connected)
        abort();
    volatile uint8_t last = ((const uint8_t *)p)[n - 1];
    (void)last;
    uint8_t how = in_u8(input);
    in_callback(o, s);
    return how & 1 ? n : how * (size_t)16;
}

static void on_writable(struct vsock_stream *s, void *ctx)
{
    in_callback(ctx, s);
}

static void on_shutdown(struct vsock_stream *s, void *ctx)
{
    struct slot *o = ctx;
    if (o->told_shutdown || vsock_held(s) > 0)
        abort();
    o->told_shutdown = true;
    in_callback(o, s);
}

static void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct slot *o = ctx;
    if (!o->s || o->s != s || (!reset && !o->told_shutdown))
        abort();
    *o = (struct slot){0};
    depth++;
    owner_op(in_u8(input));
    depth--;
}

static const struct vsock_stream_ops ops = {on_connected, on_data, on_writable, on_shutdown,
                                            on_closed};

static int on_accept(struct vsock_stream *s, void *ctx)
{
    struct slot *o = free_slot();
    if (!o || (in_u8(input) & 15) == 15)
        return -1;
    *o = (struct slot){.s = s, .connected = true};
    vsock_set_ops(s, &ops, o);
    in_callback(o, s);
    return 0;
}

/* A packet that is nearly right. */
static void packet(struct guest *g, struct input *in)
{
    uint8_t how = in_u8(in);
    uint32_t have = in_u8(in) * (how & 1 ? 1U : 100U);
    struct virtio_vsock_hdr h = {
        .src_cid = how & 128 ? in_u64(in) : VSOCK_GUEST_CID,
        .dst_cid = how & 64 ? in_u64(in) : VSOCK_HOST_CID,
        .src_port = in_u8(in) & 3,
        /* The port of a listener, or of one of the first streams that the owner opened. */
        .dst_port = how & 2 ? 1024 : (1U << 30) + (in_u8(in) & 15),
        .len = how & 4 ? in_u32(in) : have,
        .type = how & 8 ? in_u8(in) : VIRTIO_VSOCK_TYPE_STREAM,
        .op = in_u8(in) % 9,
        .flags = in_u8(in),
        .buf_alloc = how & 16 ? in_u32(in) : 65536,
        .fwd_cnt = how & 32 ? in_u32(in) : 0,
    };
    memcpy(g->ram + PACKET, &h, sizeof(h));
    guest_desc(g, G_RING, G_GPA + PACKET, sizeof(h) + have, 0, 0);
    guest_publish(g, 1, 0);
    virtio_dev_kick(g->dev, 1);
}

static void give_buffers(struct guest *g, struct input *in)
{
    unsigned n = in_u8(in) % 8;
    uint32_t len = 44 + in_u8(in) * 16U;
    for (unsigned i = 0; i < n; i++) {
        guest_desc(g, 16UL * i, G_GPA + G_DATA + 1024UL * i, len, 2, 0);
        guest_publish(g, 0, (uint16_t)i);
    }
    virtio_dev_kick(g->dev, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct guest g;
    input = &in;
    memset(slots, 0, sizeof(slots));
    guest_init(&g);
    if (virtio_vsock_new(&dev, VSOCK_GUEST_CID) < 0 || vsock_listen(dev, 1024, on_accept, NULL) < 0)
        abort();
    guest_attach(&g, dev, (uint64_t)(in_u8(&in) & 3) << 28);
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % 24;
        if (op < GUEST_OPS)
            guest_op(&g, &in, op, 3);
        else if (op == GUEST_OPS)
            guest_restart(&g, &in);
        else if (op < 14)
            packet(&g, &in);
        else if (op < 18)
            give_buffers(&g, &in);
        else
            owner_op(in_u8(&in));
        struct vsock_stats st;
        vsock_stats(dev, &st);
        if (st.streams > VSOCK_STREAMS_MAX)
            abort();
    }
    virtio_dev_detach(dev);
    virtio_dev_free(dev);
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].s && slots[i].connected)
            abort(); /* not told that it is over */
    guest_fini(&g);
    return 0;
}
