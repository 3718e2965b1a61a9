/* Attacks on the network card and the stack behind it. The attacks on rings (attacks_queue.c) are
 * tried on the card, too; here are those that need to know what it does with a buffer. */
#include "attacks.h"

enum { CSUM = 1, DATA_VALID = 2, GSO_TCP4 = 1, GSO_UDP = 3, GSO_TCP6 = 4, GSO_ECN = 0x80 };
enum { RX, TX };

static struct dev *card(uint64_t want)
{
    struct dev *d = device(ID_NET, 0);
    bring_up(d, want);
    return d;
}

static uint32_t random_number(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15ULL;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33);
}

/* One frame of `len` bytes at buf, header included; the next bring_up() ends what is refused. */
static void send_frame(struct dev *d, uint32_t len)
{
    set_desc(&d->q[TX], 0, (uint64_t)buf, len, 0, 0);
    put_avail(&d->q[TX], 0);
    kick(d, TX);
    (void)wait_answer(d, TX, SHORT);
}

/* Headers with offloads that were not negotiated, that contradict each other or the frame. */
void net_headers(void)
{
    static const uint8_t flags[] = {0, CSUM, DATA_VALID, 0xff};
    static const uint8_t types[] = {0, GSO_TCP4, GSO_UDP, GSO_TCP6, GSO_TCP4 | GSO_ECN, 2, 0x7f};
    static const uint16_t numbers[] = {0, 1, 13, 14, 34, 54, 0x7fff, 0xffff};
    static const uint32_t lengths[] = {0, 1, 11, 12, 13, 25, 26, 40, 66, 1526, 9000, BUF};
    const unsigned n = sizeof(numbers) / sizeof(numbers[0]);
    for (unsigned want = 0; want < 2; want++) {
        struct dev *d = card(want ? UINT64_MAX & ~FEATURE_EVENT_IDX : 0);
        for (unsigned i = 0; i < 240; i++) {
            uint32_t len = lengths[i % 12];
            arp_request();
            *(struct net_hdr *)(void *)buf =
                (struct net_hdr){.flags = flags[i % 4],
                                 .gso_type = types[i % 7],
                                 .hdr_len = numbers[random_number() % n],
                                 .gso_size = numbers[random_number() % n],
                                 .csum_start = numbers[random_number() % n],
                                 .csum_offset = numbers[random_number() % n],
                                 .num_buffers = (uint16_t)i};
            send_frame(d, len);
            if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
                bring_up(d, want ? UINT64_MAX & ~FEATURE_EVENT_IDX : 0);
        }
    }
    check_machine();
}

/* Ethernet, ARP, IPv4, IPv6, TCP, UDP and ICMP, each a little wrong. */
void net_frames(void)
{
    static const uint8_t types[][2] = {{8, 0}, {8, 6}, {0x86, 0xdd}, {0x81, 0}, {0, 46}};
    static const uint8_t protocols[] = {1, 6, 17, 58, 0, 44, 255};
    struct dev *d = card(UINT64_MAX & ~FEATURE_EVENT_IDX);
    net_receive_buffers(d);
    for (unsigned i = 0; i < 400; i++) {
        arp_request();
        uint8_t *eth = buf + sizeof(struct net_hdr), *ip = eth + 14;
        const uint8_t *type = types[i % 5];
        eth[12] = type[0];
        eth[13] = type[1];
        if (i % 5 != 1) {
            for (unsigned b = 0; b < 128; b++)
                ip[b] = (uint8_t)random_number();
            ip[0] = i % 5 == 2 ? 0x60 : (uint8_t)(i % 7 ? 0x45 : random_number());
            ip[i % 5 == 2 ? 6 : 9] = protocols[i % 7];
        }
        for (unsigned flips = i % 3; flips; flips--)
            ip[random_number() % 40] ^= (uint8_t)(1U << random_number() % 8);
        send_frame(d, (uint32_t)sizeof(struct net_hdr) + 14 + random_number() % 160);
        if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET) {
            d = card(UINT64_MAX & ~FEATURE_EVENT_IDX);
            net_receive_buffers(d);
        }
    }
    check_machine();
}

/* Receive buffers that a reply must not follow: over the card's own rings, read-only, outside of
 * memory, empty, in chains that loop, one byte each. */
void net_receives(void)
{
    const uint64_t end = ram_end();
    for (unsigned variant = 0; variant < 18; variant++) {
        struct dev *d = card(variant & 1 ? UINT64_MAX & ~FEATURE_EVENT_IDX : 0);
        struct queue *rx = &d->q[RX];
        const struct {
            uint64_t addr;
            uint32_t len;
            uint16_t flags, next;
        } bad[] = {
            {(uint64_t)rx->used, 4096, WRITE, 0}, {(uint64_t)rx->avail, 4096, WRITE, 0},
            {(uint64_t)rx->desc, 4096, WRITE, 0}, {(uint64_t)d->q[TX].used, 4096, WRITE, 0},
            {(uint64_t)buf, 4096, 0, 0},          {end - 8, 4096, WRITE, 0},
            {(uint64_t)buf, 0, WRITE, 0},         {(uint64_t)buf, 16, WRITE | NEXT, 0},
            {(uint64_t)buf, 1, WRITE | NEXT, 1},
        };
        for (unsigned i = 0; i < 200; i++)
            set_desc(rx, i, (uint64_t)buf + 8192 + i, 1, (uint16_t)(WRITE | (i % 7 ? NEXT : 0)),
                     (uint16_t)(i + 1));
        set_desc(rx, 0, bad[variant / 2].addr, bad[variant / 2].len, bad[variant / 2].flags,
                 bad[variant / 2].next);
        for (unsigned i = 0; i < 32; i++)
            put_avail(rx, (uint16_t)(i % 2 ? 0 : i * 6));
        kick(d, RX);
        for (unsigned i = 0; i < 8; i++) {
            arp_request();
            send_frame(d, NET_ARP);
        }
    }
    check_machine();
}

/* The driver goes, and comes back, while frames are under way in both directions; the disk has the
 * same rings. */
void net_reset_in_flight(void)
{
    struct dev *blk = device(ID_BLK, 0);
    for (unsigned round = 0; round < 60; round++) {
        struct dev *d = card(round & 1 ? UINT64_MAX : 0);
        if (round % 3 == 0)
            bring_up(blk, 0);
        net_receive_buffers(d);
        arp_request();
        for (unsigned i = 0; i < 64; i++) {
            set_desc(&d->q[TX], i, (uint64_t)buf, NET_ARP, 0, 0);
            put_avail(&d->q[TX], (uint16_t)i);
        }
        kick(d, TX);
        pause_for(round * 40);
        set_reg(d, REG_STATUS, 0);
        kick(d, TX);
        kick(d, RX);
    }
    check_machine();
}
