/* Attacks on the requests of single devices: disks, sockets, random numbers, the balloon. */
#include "attacks.h"

enum { BLK_IN = 0, BLK_OUT = 1, BLK_FLUSH = 4, BLK_ID = 8, BLK_DISCARD = 11, BLK_ZEROES = 13 };

static void ask_blk(struct dev *d, uint32_t type, uint64_t sector, uint32_t len, bool to_guest)
{
    if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
        bring_up(d, 0);
    put_avail(&d->q[0], blk_request(d, type, sector, (uint64_t)buf, len, to_guest));
    kick(d, 0);
    if (!wait_answer(d, 0, LONG))
        fail("the disk neither answers nor fails");
}

void blk_requests(void)
{
    static const uint64_t sectors[] = {
        1ULL << 20,       (1ULL << 55) - 1,     1ULL << 55, UINT64_MAX, UINT64_MAX - 1,
        UINT64_MAX / 512, UINT64_MAX / 512 + 1, 2047,       2048};
    struct dev *d = device(ID_BLK, 0);
    bring_up(d, 0);
    for (unsigned i = 0; i < sizeof(sectors) / sizeof(sectors[0]); i++)
        for (unsigned write = 0; write < 2; write++) {
            ask_blk(d, write, sectors[i], 1024, !write);
            if (blk_status() == 0)
                fail("a request beyond the end of the disk was served");
        }
    for (uint32_t type = 2; type < 40; type++)
        if (type != BLK_FLUSH && type != BLK_ID)
            ask_blk(d, type, 0, 512, true);
    ask_blk(d, 0x80000000, 0, 512, true);
    ask_blk(d, 0xffffffff, 0, 512, true);
    for (uint32_t len = 0; len < 1024; len += 171) /* not whole sectors */
        ask_blk(d, BLK_IN, 0, len, true);
    ask_blk(d, BLK_ID, 0, 1, true);
    ask_blk(d, BLK_ID, 0, BUF, true);
    /* Short header, no status byte, a status byte of 4 GiB, nothing at all. */
    struct queue *q = &d->q[0];
    for (unsigned variant = 0; variant < 4; variant++) {
        bring_up(d, 0);
        put_avail(q, blk_request(d, BLK_IN, 0, (uint64_t)buf, 512, true));
        if (variant == 0)
            q->desc[0].len = 15;
        if (variant == 1)
            q->desc[1].flags = WRITE;
        if (variant == 2)
            q->desc[2].len = 0xffffffff;
        if (variant == 3)
            q->desc[0].flags = 0;
        kick(d, 0);
        (void)wait_answer(d, 0, SHORT);
    }
    check_machine();
}

void blk_discard(void)
{
    static const struct {
        uint64_t sector;
        uint32_t count, flags;
    } ranges[] = {{0, 0xffffffff, 0}, {UINT64_MAX, 2, 0}, {1ULL << 55, 1, 0}, {16, 0xffffffff, 1},
                  {2048, 8, 0},       {4095, 8, 1},       {16, 0, 0},         {16, 8, 0xffffffff}};
    struct dev *d = device(ID_BLK, 0);
    for (unsigned type = BLK_DISCARD; type <= BLK_ZEROES; type += 2)
        for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
            bring_up(d, UINT64_MAX & ~FEATURE_EVENT_IDX);
            for (unsigned b = 0; b < sizeof(ranges[i]); b++)
                buf[b] = ((const uint8_t *)&ranges[i])[b];
            ask_blk(d, type, 0, sizeof(ranges[i]), false);
            ask_blk(d, type, 0, sizeof(ranges[i]) - 1, false);
            ask_blk(d, type, 0, BUF, false); /* 4096 ranges */
        }
    check_machine();
}

/* The second disk is read-only, whether or not the driver knows. */
void blk_read_only(void)
{
    struct dev *d = device(ID_BLK, 1);
    for (unsigned i = 0; i < BUF; i++)
        buf[i] = 0xee;
    for (unsigned features = 0; features < 2; features++) {
        bring_up(d, features ? UINT64_MAX & ~FEATURE_EVENT_IDX : 0);
        for (uint32_t type = 1; type < 20; type++) {
            ask_blk(d, type, 0, 512, false);
            if (blk_status() == 0 && type != BLK_FLUSH)
                fail("a write to a read-only disk was served");
        }
    }
    check_machine(); /* reads it back */
}

/* --- vsock ------------------------------------------------------------------------------------ */

static struct dev *sockets(void)
{
    struct dev *d = device(ID_VSOCK, 0);
    bring_up(d, 0);
    vsock_receive_buffers(d, 8);
    return d;
}

void vsock_packets(void)
{
    struct dev *d = sockets();
    for (uint16_t op = 0; op < 12; op++) /* on a stream that does not exist */
        for (unsigned n = 0; n < 3; n++) {
            struct vsock_hdr h = vsock_header(op, 10 + n, n == 0 ? ECHO_PORT : 9, 0);
            (void)vsock_send(d, &h, 0);
        }
    struct vsock_hdr h = vsock_header(VSOCK_REQUEST, 100, ECHO_PORT, 0);
    (void)vsock_send(d, &h, 0);
    /* Lengths that the chain does not have, and chains longer than they say. */
    static const uint32_t lengths[] = {1, 4096, 65536, 65537, 0x7fffffff, 0xffffffff};
    for (unsigned i = 0; i < 6; i++)
        for (uint32_t payload = 0; payload <= BUF; payload += BUF / 4) {
            h = vsock_header(VSOCK_RW, 100, ECHO_PORT, lengths[i]);
            (void)vsock_send(d, &h, payload);
            if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
                d = sockets();
        }
    h = vsock_header(VSOCK_REQUEST, 101, ECHO_PORT, 0);
    for (unsigned bit = 0; bit < 16; bit++) {
        h.type = (uint16_t)(1U << bit);
        (void)vsock_send(d, &h, 0);
        h.type = 1;
        h.op = (uint16_t)(0xff00 | bit);
        (void)vsock_send(d, &h, 0);
        h.op = VSOCK_REQUEST;
        h.src_cid = 1ULL << (4 * bit);
        (void)vsock_send(d, &h, 0);
        h.src_cid = 3;
        h.dst_cid = UINT64_MAX >> bit;
        (void)vsock_send(d, &h, 0);
        h.dst_cid = 2;
        h.flags = 1U << bit;
        h.op = VSOCK_SHUTDOWN;
        (void)vsock_send(d, &h, 0);
        h.op = VSOCK_REQUEST;
    }
    /* A header in many pieces, and one cut short. */
    struct queue *q = &d->q[1];
    for (unsigned i = 0; i < 44; i++)
        set_desc(q, i, (uint64_t)buf + i, 1, i < 43 ? NEXT : 0, (uint16_t)(i + 1));
    put_avail(q, 0);
    put_avail(q, 1);
    kick(d, 1);
    (void)wait_answer(d, 1, SHORT);
    check_machine();
}

void vsock_credit(void)
{
    struct dev *d = sockets();
    static const uint32_t lies[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff};
    for (uint32_t port = 0; port < 25; port++) {
        struct vsock_hdr h = vsock_header(VSOCK_REQUEST, 200 + port, ECHO_PORT, 0);
        h.buf_alloc = lies[port % 5];
        h.fwd_cnt = lies[port / 5];
        (void)vsock_send(d, &h, 0);
        h.op = VSOCK_CREDIT_UPDATE;
        h.fwd_cnt += 0x1000;
        (void)vsock_send(d, &h, 0);
        /* Far more than the host has granted. */
        for (unsigned n = 0; n < 8; n++) {
            h.op = VSOCK_RW;
            h.len = BUF;
            h.fwd_cnt = lies[n % 5];
            (void)vsock_send(d, &h, BUF);
        }
        if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
            d = sockets();
    }
    check_machine();
}

/* More connections than allowed, never read from; then all reset, twice. */
void vsock_flood(void)
{
    struct dev *d = device(ID_VSOCK, 0);
    bring_up(d, 0); /* no receive buffers: the host cannot even refuse */
    for (uint32_t port = 0; port < 1500; port++) {
        struct vsock_hdr h = vsock_header(VSOCK_REQUEST, 1000 + port, ECHO_PORT, 0);
        vsock_post(d, &h, 0);
        if (!wait_answer(d, 1, SHORT))
            break; /* the host may wait for buffers */
    }
    d = sockets();
    for (uint32_t port = 0; port < 1500; port++) {
        struct vsock_hdr h =
            vsock_header(port % 3 ? VSOCK_RST : VSOCK_REQUEST, 1000 + port / 2, ECHO_PORT, 0);
        if (!vsock_send(d, &h, 0))
            d = sockets();
    }
    check_machine();
}

/* --- the others ---------------------------------------------------------------------------------
 */

void rng_greed(void)
{
    struct dev *d = device(ID_RNG, 0);
    bring_up(d, 0);
    for (unsigned i = 0; i < RING; i++)
        set_desc(&d->q[0], i, (uint64_t)buf, BUF, WRITE, 0);
    for (unsigned n = 0; n < 2 * RING; n++)
        put_avail(&d->q[0], (uint16_t)(n % RING));
    kick(d, 0);
    (void)wait_answer(d, 0, SHORT);
    check_machine();
}

/* Pages that do not exist, that devices use, that wrap; in the wrong direction and number. */
void balloon_lies(void)
{
    struct dev *d = device(ID_BALLOON, 0);
    static const uint32_t pages[] = {0xffffffff, 0xfee00, 0xd0000, 0x80000000, 0xfffff};
    const uint32_t end = (uint32_t)(ram_end() >> 12);
    for (unsigned variant = 0; variant < 12; variant++) {
        bring_up(d, variant & 1 ? UINT64_MAX & ~FEATURE_EVENT_IDX : 0);
        uint32_t *list = (uint32_t *)(void *)buf;
        for (unsigned i = 0; i < 1024; i++)
            list[i] = i % 6 < 5 ? pages[i % 6] : end + i - 6;
        for (unsigned q = 0; q < QUEUES; q++) {
            set_desc(&d->q[q], 0, (uint64_t)buf, 4096 - variant, variant & 2 ? WRITE : 0, 0);
            put_avail(&d->q[q], 0);
            /* As a report of free pages: outside, wrapping, half a page, a whole ring. */
            static const uint64_t free_at[] = {0xfee00000, UINT64_MAX - 4095, 1ULL << 62,
                                               0x1000800};
            set_desc(&d->q[q], 1, free_at[variant % 4], variant < 4 ? 4096 : 0xfffff000, WRITE, 0);
            put_avail(&d->q[q], 1);
            set_desc(&d->q[q], 2, ram_end() - 4096, 8192, WRITE, 0);
            put_avail(&d->q[q], 2);
            kick(d, q);
        }
        (void)wait_answer(d, 0, SHORT);
    }
    check_machine();
}
