/* The network card, with a good driver and a bad one. */
#include <linux/virtio_net.h>
#include <string.h>

#include "fake_driver.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/iov.h"
#include "virtio/net.h"

enum { RX, TX, HDR = 12, RING = 64 };

#define BIT(n) (1ULL << (n))

/* What the other end of the link has seen. */
struct fix {
    struct fake f;
    struct virtio_dev *dev;
    struct link *link;
    unsigned frames, ends, rooms, resets;
    size_t len;
    struct link_offload off;
    uint8_t bytes[LINK_FRAME_MAX];
};

static void on_input(void *ctx, const struct link_offload *o, const struct iovec *iov, unsigned n,
                     size_t len)
{
    struct fix *x = ctx;
    x->frames++;
    x->len = len;
    x->off = *o;
    assert_int_equal(iov_total(iov, n), len);
    (void)iov_read(iov, n, 0, x->bytes, len);
}
static void on_end(void *ctx)
{
    ((struct fix *)ctx)->ends++;
}
static void on_room(void *ctx)
{
    ((struct fix *)ctx)->rooms++;
}
static void on_reset(void *ctx)
{
    ((struct fix *)ctx)->resets++;
}
static const struct link_user user = {on_input, on_end, on_room, on_reset};

static struct fix *start(uint64_t without)
{
    static const uint8_t mac[6] = {2, 0, 0, 0, 0, 1};
    struct fix *x = test_calloc(1, sizeof(*x));
    fake_init(&x->f);
    assert_int_equal(virtio_net_new(&x->dev, mac, NET_MTU), 0);
    x->link = virtio_net_link(x->dev);
    x->link->user = &user;
    x->link->ctx = x;
    fake_attach(&x->f, x->dev, RING, without);
    return x;
}

static int set_up(void **state)
{
    *state = start(0);
    return 0;
}

static int tear_down(void **state)
{
    struct fix *x = *state;
    fake_fini(&x->f);
    virtio_dev_free(x->dev);
    test_free(x);
    return 0;
}

/* Sends a frame of len bytes behind that header, in `pieces` buffers. */
static void transmit(struct fix *x, const struct virtio_net_hdr_v1 *h, size_t len, unsigned pieces)
{
    size_t total = HDR + len, done = 0;
    uint64_t at = fake_alloc(&x->f, total, 16);
    uint8_t *p = fake_ptr(&x->f, at);
    struct fake_buf b[8];
    memcpy(p, h, HDR);
    for (size_t i = 0; i < len; i++)
        p[HDR + i] = (uint8_t)i;
    for (unsigned i = 0; i < pieces; i++) {
        size_t k = i + 1 == pieces ? total - done : total / pieces;
        b[i] = (struct fake_buf){.addr = at + done, .len = (uint32_t)k};
        done += k;
    }
    (void)fake_add(&x->f, TX, b, pieces);
    fake_kick(&x->f, TX);
}

static void give_rx(struct fix *x, unsigned count, uint32_t len)
{
    for (unsigned i = 0; i < count; i++) {
        struct fake_buf b = {.addr = fake_alloc(&x->f, len, 16), .len = len, .in = true};
        (void)fake_add(&x->f, RX, &b, 1);
    }
    fake_kick(&x->f, RX);
}

static const struct virtio_net_hdr_v1 plain;

static void test_frames_from_the_guest(void **state)
{
    struct fix *x = *state;
    transmit(x, &plain, 100, 1);
    assert_int_equal(x->frames, 1);
    assert_int_equal(x->len, 100);
    assert_int_equal(x->bytes[99], 99);
    assert_true(x->ends >= 1);
    transmit(x, &plain, 1514, 7);
    assert_int_equal(x->frames, 2);
    assert_int_equal(x->len, 1514);
    assert_int_equal(x->bytes[513], 1);
    assert_true(fake_used(&x->f, TX, NULL, NULL) && fake_used(&x->f, TX, NULL, NULL));
    assert_null(x->f.broken);
}

static void test_sizes(void **state)
{
    struct fix *x = *state;
    struct virtio_net_hdr_v1 gso = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                    .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                    .gso_size = 1460,
                                    .csum_start = 34,
                                    .csum_offset = 16};
    transmit(x, &plain, 13, 1);
    transmit(x, &plain, 1515, 1);
    transmit(x, &gso, LINK_FRAME_MAX + 1, 2);
    assert_int_equal(x->frames, 0);
    assert_int_equal(virtio_net_stats(x->dev)->bad_size, 3);
    transmit(x, &plain, 14, 1);
    transmit(x, &gso, LINK_FRAME_MAX, 3);
    assert_int_equal(x->frames, 2);
    assert_int_equal(x->off.gso, LINK_GSO_TCP4);
    assert_int_equal(x->off.gso_size, 1460);
    assert_null(x->f.broken);
}

static void test_bad_headers(void **state)
{
    struct fix *x = *state;
    const uint8_t csum = VIRTIO_NET_HDR_F_NEEDS_CSUM, tcp4 = VIRTIO_NET_HDR_GSO_TCPV4;
    const struct virtio_net_hdr_v1 bad[] = {
        {.flags = csum, .csum_start = 99, .csum_offset = 0}, /* ends beyond the frame */
        {.flags = csum, .csum_start = 90, .csum_offset = 9}, /* by one byte */
        {.flags = csum, .csum_start = 65535, .csum_offset = 65535},
        {.flags = csum, .csum_start = 13, .csum_offset = 0},    /* in the Ethernet header */
        {.flags = csum, .gso_type = tcp4, .csum_start = 34},    /* segments of no size */
        {.gso_type = tcp4, .gso_size = 1460, .csum_start = 34}, /* no sum */
        {.flags = csum, .gso_type = VIRTIO_NET_HDR_GSO_UDP, .gso_size = 1, .csum_start = 34},
        {.flags = csum, .gso_type = tcp4 | VIRTIO_NET_HDR_GSO_ECN, .gso_size = 1, .csum_start = 34},
        {.flags = csum, .gso_type = 77, .gso_size = 1, .csum_start = 34},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        transmit(x, &bad[i], 100, 1);
    assert_int_equal(x->frames, 0);
    assert_int_equal(virtio_net_stats(x->dev)->bad_header, ARRAY_LEN(bad));
    struct virtio_net_hdr_v1 good = {.flags = csum, .csum_start = 90, .csum_offset = 8};
    transmit(x, &good, 100, 1);
    assert_int_equal(x->frames, 1);
    assert_true(x->off.csum);
    assert_null(x->f.broken);
}

static void test_offloads_that_were_not_negotiated(void **state)
{
    struct fix *x = start(BIT(VIRTIO_NET_F_HOST_TSO4) | BIT(VIRTIO_NET_F_GUEST_TSO6));
    struct virtio_net_hdr_v1 h = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                  .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                  .gso_size = 1460,
                                  .csum_start = 34};
    transmit(x, &h, 3000, 1);
    assert_int_equal(x->frames, 0);
    h.gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
    transmit(x, &h, 3000, 1);
    assert_int_equal(x->frames, 1);
    assert_int_equal(x->link->caps, LINK_CSUM | LINK_TSO4 | LINK_ANY_SIZE);
    void *p = x;
    (void)tear_down(&p);

    x = start(BIT(VIRTIO_NET_F_CSUM) | BIT(VIRTIO_NET_F_GUEST_CSUM));
    h = (struct virtio_net_hdr_v1){.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 34};
    transmit(x, &h, 100, 1);
    assert_int_equal(x->frames, 0);
    assert_int_equal(x->link->caps, LINK_ANY_SIZE); /* no segments without sums */
    p = x;
    (void)tear_down(&p);
}

static void test_frame_without_a_header_breaks(void **state)
{
    struct fix *x = *state;
    struct fake_buf b = {.addr = fake_alloc(&x->f, 16, 16), .len = HDR - 1};
    (void)fake_add(&x->f, TX, &b, 1);
    fake_kick(&x->f, TX);
    assert_non_null(x->f.broken);
    assert_int_equal(x->frames, 0);
}

static void test_writable_transmit_buffer_breaks(void **state)
{
    struct fix *x = *state;
    struct fake_buf b = {.addr = fake_alloc(&x->f, 100, 16), .len = 100, .in = true};
    (void)fake_add(&x->f, TX, &b, 1);
    fake_kick(&x->f, TX);
    assert_non_null(x->f.broken);
}

/* Reserves `want`, fills it with a pattern, commits `len`; what was reserved. */
static size_t deliver(struct fix *x, size_t min, size_t want, size_t len)
{
    const struct iovec *iov;
    unsigned n;
    struct link_offload o = {0};
    size_t got = x->link->ops->reserve(x->link, min, want, &iov, &n);
    if (got == 0)
        return 0;
    assert_int_equal(iov_total(iov, n), got);
    for (size_t i = 0; i < got; i++) {
        uint8_t b = (uint8_t)(i * 7);
        (void)iov_write(iov, n, i, &b, 1);
    }
    x->link->ops->commit(x->link, &o, len);
    x->link->ops->flush(x->link);
    return got;
}

static void test_frame_in_one_buffer(void **state)
{
    struct fix *x = *state;
    uint64_t at = x->f.brk;
    give_rx(x, 2, 1600);
    assert_int_equal(deliver(x, 60, 60, 60), 60);
    uint32_t len;
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_false(fake_used(&x->f, RX, NULL, NULL));
    assert_int_equal(len, HDR + 60);
    const uint8_t *p = fake_ptr(&x->f, (at + 15) / 16 * 16);
    struct virtio_net_hdr_v1 h;
    memcpy(&h, p, HDR);
    assert_int_equal(h.num_buffers, 1);
    assert_int_equal(p[HDR + 59], (uint8_t)(59 * 7));
    assert_int_equal(x->f.interrupts[RX], 1);
}

static void test_frame_over_many_buffers(void **state)
{
    struct fix *x = *state;
    give_rx(x, 40, 1500);
    assert_int_equal(deliver(x, 100, 40000, 40000), 40000);
    size_t total = 0, n = 0;
    for (uint32_t len; fake_used(&x->f, RX, NULL, &len); n++)
        total += len;
    assert_int_equal(total, HDR + 40000);
    assert_int_equal(n, (40000 + HDR + 1499) / 1500);
}

static void test_unused_buffers_go_back(void **state)
{
    struct fix *x = *state;
    give_rx(x, 10, 1000);
    assert_int_equal(deliver(x, 100, 9000, 100), 9000); /* nine more than needed */
    assert_int_equal(deliver(x, 100, 9000, 0), 8988);   /* none used: all go back */
    uint32_t len;
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_int_equal(len, HDR + 100);
    assert_false(fake_used(&x->f, RX, NULL, NULL));
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(deliver(x, 100, 500, 500), 500);
        assert_true(fake_used(&x->f, RX, NULL, &len));
    }
    assert_int_equal(deliver(x, 100, 500, 500), 0);
}

static void test_no_room(void **state)
{
    struct fix *x = *state;
    unsigned rooms = x->rooms;
    assert_int_equal(deliver(x, 100, 100, 100), 0);
    give_rx(x, 1, 50); /* not enough: it waits for more */
    assert_int_equal(x->rooms, rooms + 1);
    assert_int_equal(deliver(x, 100, 100, 100), 0);
    give_rx(x, 1, 80);
    assert_int_equal(x->rooms, rooms + 2);
    assert_int_equal(deliver(x, 100, 100, 100), 100);
    give_rx(x, 1, 80); /* nothing waits now */
    assert_int_equal(x->rooms, rooms + 2);
    assert_null(x->f.broken);
}

static void test_tiny_buffers_without_merging_break(void **state)
{
    struct fix *x = start(BIT(VIRTIO_NET_F_MRG_RXBUF));
    give_rx(x, 2, 1600);
    assert_int_equal(deliver(x, 1000, 4000, 1000), 1588);
    give_rx(x, 2, 50);
    assert_int_equal(deliver(x, 1000, 1000, 1000), 1000);
    assert_int_equal(deliver(x, 1000, 1000, 1000), 0);
    assert_non_null(x->f.broken);
    void *p = x;
    (void)tear_down(&p);
}

static void test_readable_receive_buffer_breaks(void **state)
{
    struct fix *x = *state;
    struct fake_buf b = {.addr = fake_alloc(&x->f, 2000, 16), .len = 2000};
    (void)fake_add(&x->f, RX, &b, 1);
    assert_int_equal(deliver(x, 100, 100, 100), 0);
    assert_non_null(x->f.broken);
}

static void test_reset_tells_the_user(void **state)
{
    struct fix *x = *state;
    fake_detach(&x->f);
    assert_int_equal(x->resets, 1);
    assert_int_equal(deliver(x, 100, 100, 100), 0);
}

static void test_without_a_user(void **state)
{
    struct fix *x = *state;
    x->link->user = NULL;
    transmit(x, &plain, 100, 1);
    give_rx(x, 1, 1600);
    assert_int_equal(x->frames, 0);
    assert_false(fake_used(&x->f, TX, NULL, NULL));
    fake_detach(&x->f);
    assert_int_equal(x->resets, 0);
}

static void test_config(void **state)
{
    struct fix *x = *state;
    struct virtio_net_config c;
    virtio_dev_config_read(x->dev, 0, &c, sizeof(c));
    assert_int_equal(c.mac[0], 2);
    assert_int_equal(c.mac[5], 1);
    assert_int_equal(c.mtu, 1500);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_frames_from_the_guest),
        T(test_sizes),
        T(test_bad_headers),
        cmocka_unit_test(test_offloads_that_were_not_negotiated),
        T(test_frame_without_a_header_breaks),
        T(test_writable_transmit_buffer_breaks),
        T(test_frame_in_one_buffer),
        T(test_frame_over_many_buffers),
        T(test_unused_buffers_go_back),
        T(test_no_room),
        cmocka_unit_test(test_tiny_buffers_without_merging_break),
        T(test_readable_receive_buffer_breaks),
        T(test_reset_tells_the_user),
        T(test_without_a_user),
        T(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
