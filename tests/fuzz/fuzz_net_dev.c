/* The network card: a hostile driver on its rings, and a user that sends and answers at any time.
 */
#include "fuzz_guest.h"

#include "util/cleanup.h"
#include "util/iov.h"
#include "virtio/net.h"

static struct input *input;
static struct link *link_;

/* Sends a frame of a size that the input says, or changes its mind. */
static void send_some(void)
{
    const struct iovec *iov;
    unsigned n;
    struct link_offload o = {0};
    size_t want = in_u16(input) + 60U, min = in_u8(input) & 1 ? 60 : want;
    size_t got = link_->ops->reserve(link_, MIN(min, want), want, &iov, &n);
    if (got == 0)
        return;
    if (iov_total(iov, n) != got || got > want || n > LINK_IOV_MAX)
        abort();
    for (unsigned i = 0; i < n; i++)
        memset(iov[i].iov_base, 0x5a, iov[i].iov_len);
    link_->ops->commit(link_, &o, in_u8(input) & 1 ? got : got / 2);
    if (in_u8(input) & 1)
        link_->ops->flush(link_);
}

static void on_input(void *ctx, const struct link_offload *o, const struct iovec *iov, unsigned n,
                     size_t len)
{
    uint8_t last;
    if (len < LINK_ETH || len > LINK_FRAME_MAX || iov_total(iov, n) != len)
        abort();
    if (o->csum && (size_t)o->csum_start + o->csum_offset + 2 > len)
        abort();
    if (o->gso != LINK_GSO_NONE && o->gso_size == 0)
        abort();
    if (iov_read(iov, n, len - 1, &last, 1) != 1)
        abort();
    if (in_u8(input) & 1)
        send_some();
}

static void on_event(void *ctx)
{
    if (in_u8(input) & 1)
        send_some();
}
static void on_reset(void *ctx)
{
}

static const struct link_user user = {on_input, on_event, on_event, on_reset};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t mac[6] = {2};
    struct input in = {.p = data, .n = size};
    struct guest g;
    struct virtio_dev *d;
    input = &in;
    guest_init(&g);
    if (virtio_net_new(&d, mac, NET_MTU) < 0)
        abort();
    link_ = virtio_net_link(d);
    link_->user = &user;
    guest_attach(&g, d, in_u8(&in) & 1 ? in_u32(&in) & 0xffffff : 0);
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % (GUEST_OPS + 2);
        if (op < GUEST_OPS)
            guest_op(&g, &in, op, 2);
        else if (op == GUEST_OPS)
            send_some();
        else
            guest_restart(&g, &in);
    }
    virtio_dev_detach(d);
    virtio_dev_free(d);
    guest_fini(&g);
    return 0;
}
