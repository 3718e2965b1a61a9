/* A network card that leads to a TAP device, which a socket plays: one frame to a message. */
#include <linux/virtio_net.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_driver.h"
#include "unit.h"
#include "util/cleanup.h"
#include "virtio/net.h"
#include "virtio/tap.h"

enum { RX, TX, CARD_HDR = 12, TAP_HDR = 10, RING = 64, MTU = 4000 };

#define BIT(n) (1ULL << (n))

struct fix {
    struct fake f;
    struct virtio_dev *dev;
    struct loop loop;
    struct tap *tap;
    int card, far; /* the two ends of the wire */
    uint8_t bytes[TAP_HDR + LINK_FRAME_MAX];
};

static const uint8_t mac[6] = {2, 0, 0, 0, 0, 1};

static struct fix *make(void)
{
    struct fix *x = test_calloc(1, sizeof(*x));
    int pair[2];
    fake_init(&x->f);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
                     0);
    x->card = pair[0];
    x->far = pair[1];
    assert_int_equal(loop_init(&x->loop), 0);
    assert_int_equal(virtio_net_new(&x->dev, mac, MTU), 0);
    assert_int_equal(tap_new(&x->tap, &x->loop, virtio_net_link(x->dev), x->card), 0);
    return x;
}

static struct fix *start(uint64_t without)
{
    struct fix *x = make();
    fake_attach(&x->f, x->dev, RING, without);
    return x;
}

static void stop(struct fix *x)
{
    tap_free(x->tap);
    fake_fini(&x->f);
    virtio_dev_free(x->dev);
    loop_fini(&x->loop);
    close_fd(&x->card);
    close_fd(&x->far);
    test_free(x);
}

static void turn(struct fix *x)
{
    for (int i = 0; i < 4; i++)
        assert_int_equal(loop_turn(&x->loop, 0), 0);
}

static void give_rx(struct fix *x, unsigned count, uint32_t len)
{
    for (unsigned i = 0; i < count; i++) {
        struct fake_buf b = {.addr = fake_alloc(&x->f, len, 16), .len = len, .in = true};
        (void)fake_add(&x->f, RX, &b, 1);
    }
    fake_kick(&x->f, RX);
}

static void arrive(struct fix *x, const struct virtio_net_hdr *h, size_t len)
{
    memcpy(x->bytes, h, TAP_HDR);
    for (size_t i = 0; i < len; i++)
        x->bytes[TAP_HDR + i] = (uint8_t)(i * 3);
    assert_int_equal(send(x->far, x->bytes, TAP_HDR + len, 0), TAP_HDR + len);
    turn(x);
}

static const struct virtio_net_hdr plain;

static void test_out(void **state)
{
    struct fix *x = start(0);
    struct virtio_net_hdr_v1 h = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                  .gso_type = VIRTIO_NET_HDR_GSO_TCPV6,
                                  .gso_size = 1440,
                                  .csum_start = 54,
                                  .csum_offset = 16};
    uint64_t at = fake_alloc(&x->f, CARD_HDR + 9000, 16);
    memcpy(fake_ptr(&x->f, at), &h, CARD_HDR);
    memset((uint8_t *)fake_ptr(&x->f, at) + CARD_HDR, 0x5a, 9000);
    const struct fake_buf b[] = {{.addr = at, .len = CARD_HDR + 100},
                                 {.addr = at + CARD_HDR + 100, .len = 8900}};
    (void)fake_add(&x->f, TX, b, 2);
    fake_kick(&x->f, TX);
    struct virtio_net_hdr out;
    assert_int_equal(recv(x->far, x->bytes, sizeof(x->bytes), 0), TAP_HDR + 9000);
    memcpy(&out, x->bytes, TAP_HDR);
    assert_int_equal(out.gso_type, VIRTIO_NET_HDR_GSO_TCPV6);
    assert_int_equal(out.gso_size, 1440);
    assert_int_equal(out.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    assert_int_equal(out.csum_start, 54);
    assert_int_equal(x->bytes[TAP_HDR + 8999], 0x5a);
    assert_true(fake_used(&x->f, TX, NULL, NULL));
    stop(x);
}

static void test_in_and_without_room(void **state)
{
    struct fix *x = start(0);
    uint32_t len;
    arrive(x, &plain, 100); /* it waits, and so do those behind it */
    arrive(x, &plain, 200);
    assert_false(fake_used(&x->f, RX, NULL, NULL));
    uint64_t at = (x->f.brk + 15) / 16 * 16;
    give_rx(x, 1, 1600);
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_int_equal(len, CARD_HDR + 100);
    assert_int_equal(((uint8_t *)fake_ptr(&x->f, at))[CARD_HDR + 99], (uint8_t)(99 * 3));
    turn(x);
    give_rx(x, 1, 1600);
    turn(x);
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_int_equal(len, CARD_HDR + 200);
    assert_null(x->f.broken);
    stop(x);
}

static void test_frames_before_the_driver(void **state)
{
    struct fix *x = make();
    uint32_t len;
    arrive(x, &plain, 60);
    fake_attach(&x->f, x->dev, RING, 0);
    give_rx(x, 4, 1600);
    turn(x);
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_int_equal(len, CARD_HDR + 60);
    stop(x);
}

static void test_what_the_driver_cannot_take(void **state)
{
    struct fix *x = start(BIT(VIRTIO_NET_F_GUEST_TSO4));
    struct virtio_net_hdr h = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                               .gso_size = 1460,
                               .hdr_len = 54,
                               .csum_start = 34};
    uint32_t len;
    give_rx(x, 8, 1600);
    arrive(x, &h, 3000);
    h.gso_type = 77;
    arrive(x, &h, 3000);
    arrive(x, &plain, LINK_ETH - 1);
    assert_false(fake_used(&x->f, RX, NULL, NULL));
    h.gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
    arrive(x, &h, 3000); /* two buffers */
    assert_true(fake_used(&x->f, RX, NULL, &len) && fake_used(&x->f, RX, NULL, &len));
    arrive(x, &plain, 60);
    assert_true(fake_used(&x->f, RX, NULL, &len));
    assert_int_equal(len, CARD_HDR + 60);
    stop(x);
}

static void test_a_device_that_goes_away(void **state)
{
    struct fix *x = start(0);
    give_rx(x, 4, 1600);
    close_fd(&x->far);
    turn(x);
    struct epoll_event ev; /* its end must not be watched forever */
    assert_int_equal(epoll_wait(x->loop.epfd, &ev, 1, 0), 0);
    uint64_t at = fake_alloc(&x->f, CARD_HDR + 60, 16);
    const struct fake_buf b = {.addr = at, .len = CARD_HDR + 60};
    (void)fake_add(&x->f, TX, &b, 1);
    fake_kick(&x->f, TX);
    assert_true(fake_used(&x->f, TX, NULL, NULL));
    fake_detach(&x->f);
    stop(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out),
        cmocka_unit_test(test_in_and_without_room),
        cmocka_unit_test(test_frames_before_the_driver),
        cmocka_unit_test(test_what_the_driver_cannot_take),
        cmocka_unit_test(test_a_device_that_goes_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
