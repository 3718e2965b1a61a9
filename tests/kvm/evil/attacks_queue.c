/* Attacks on virtqueues and on the registers of the transport. Most are tried on every device that
 * has a queue 0, since each device walks the chains in its own code.
 */
#include "attacks.h"

static const uint64_t ring_features = FEATURE_INDIRECT | FEATURE_EVENT_IDX;

/* Brings up each device in turn and lets `bend` corrupt it; how the device reacts does not matter,
 * only that it works after a reset (check_machine). */
static void every_device(void (*bend)(struct dev *d, unsigned variant), unsigned variants)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++)
        for (unsigned v = 0; v < 2 * variants; v++) {
            move_rings(v >= variants);
            bring_up(d, v & 1 ? ring_features : FEATURE_INDIRECT);
            bend(d, v % variants);
            pause_for(2000);
        }
    move_rings(false);
    check_machine();
}

/* Makes `head` available on all queues of the device. */
static void offer(struct dev *d, uint16_t head)
{
    for (unsigned q = 0; q < 3; q++) {
        put_avail(&d->q[q], head);
        kick(d, q);
    }
}

static void all_queues(struct dev *d, unsigned i, uint64_t addr, uint32_t len, uint16_t flags,
                       uint16_t next)
{
    for (unsigned q = 0; q < 3; q++)
        set_desc(&d->q[q], i, addr, len, flags, next);
}

static void bend_head(struct dev *d, unsigned variant)
{
    static const uint16_t heads[] = {RING, RING + 1, 0x7fff, 0xffff, 1023, 1024};
    offer(d, heads[variant]);
}

void head_out_of_range(void)
{
    every_device(bend_head, 6);
}

static void bend_next(struct dev *d, unsigned variant)
{
    static const uint16_t next[] = {RING, 0x8000, 0xffff, 1024};
    all_queues(d, 0, (uint64_t)buf, 16, (uint16_t)(NEXT | (d->id == ID_RNG ? WRITE : 0)),
               next[variant]);
    offer(d, 0);
}

void next_out_of_range(void)
{
    every_device(bend_next, 4);
}

static void bend_loop(struct dev *d, unsigned variant)
{
    uint16_t flags = (uint16_t)(NEXT | (variant & 1 ? WRITE : 0));
    all_queues(d, 0, (uint64_t)buf, 16, flags, variant < 2 ? 0 : 1);
    all_queues(d, 1, (uint64_t)buf, 16, flags, 0);
    offer(d, 0);
}

void descriptor_loops(void)
{
    every_device(bend_loop, 4);
}

/* As long as the queue, then one that visits a descriptor twice. */
static void bend_length(struct dev *d, unsigned variant)
{
    uint16_t flags = (uint16_t)(NEXT | (variant & 1 ? WRITE : 0));
    for (unsigned i = 0; i < RING; i++)
        all_queues(d, i, (uint64_t)buf, 16, flags, (uint16_t)((i + 1) % RING));
    if (variant < 2)
        all_queues(d, RING - 1, (uint64_t)buf, 16, (uint16_t)(flags & ~NEXT), 0);
    offer(d, 0);
}

void chain_too_long(void)
{
    every_device(bend_length, 4);
}

static void bend_indirect(struct dev *d, unsigned variant)
{
    static struct desc table[64];
    static const uint32_t lengths[] = {0, 1, 15, 17, 0xffffffff, 0xfffffff0, 0x100000, 1024};
    for (unsigned i = 0; i < 64; i++)
        table[i] = (struct desc){(uint64_t)buf, 16, NEXT, (uint16_t)((i + 1) % 64)};
    if (variant == 8) /* a table inside a table */
        table[0] = (struct desc){(uint64_t)table, sizeof(table), INDIRECT, 0};
    if (variant == 9) /* a table that is its own first buffer */
        table[0] = (struct desc){(uint64_t)table, sizeof(table), INDIRECT | NEXT | WRITE, 0};
    if (variant == 10) /* out of its own bounds */
        table[0].next = 64;
    uint64_t at = variant == 11 ? ram_end() - 16 : (uint64_t)table;
    uint16_t flags = (uint16_t)(INDIRECT | (variant == 12 ? NEXT : 0));
    all_queues(d, 0, at, variant < 8 ? lengths[variant] : sizeof(table), flags, 0);
    if (variant == 13) /* unaligned, and over the ring itself */
        all_queues(d, 0, (uint64_t)d->q[0].desc + 1, 64 * 16, INDIRECT, 0);
    offer(d, 0);
}

void indirect_tables(void)
{
    every_device(bend_indirect, 14);
}

static void bend_address(struct dev *d, unsigned variant)
{
    const uint64_t end = ram_end(), regs = (uint64_t)d->regs;
    const struct {
        uint64_t addr;
        uint32_t len;
    } bad[] = {
        {end - 8, 16},
        {end, 16},
        {end - 1, 0xffffffff},
        {0, 0xffffffff},
        {UINT64_MAX, 1},
        {UINT64_MAX - 7, 8},
        {UINT64_MAX - 7, 16},
        {UINT64_MAX, 0xffffffff},
        {1ULL << 63, 16},
        {1ULL << 52, 16},
        {0xfee00000, 16},
        {0xfec00000, 16},
        {regs, 256},
        {regs - 8, 16},
        {(uint64_t)buf, 0},
        {0x9fff8, 0x70000},
        {0x100000000ULL, 512},
        {end - 4096, 8192},
        {0xfffffffffffff000, 8},
        {0xd0000000, 0x30000000},
    };
    const unsigned n = sizeof(bad) / sizeof(bad[0]);
    uint16_t flags = variant >= n ? WRITE : 0;
    /* Alone, as the first of a chain, and after a valid header. */
    all_queues(d, 0, bad[variant % n].addr, bad[variant % n].len, flags, 0);
    offer(d, 0);
    all_queues(d, 1, bad[variant % n].addr, bad[variant % n].len, flags | NEXT, 2);
    all_queues(d, 2, (uint64_t)buf, 1, WRITE, 0);
    offer(d, 1);
    if (d->id == ID_BLK) {
        pause_for(1000);
        bring_up(d, 0);
        put_avail(&d->q[0], blk_request(d, flags ? 0 : 1, 8, bad[variant % n].addr,
                                        bad[variant % n].len & ~511U, flags != 0));
        kick(d, 0);
        (void)wait_answer(d, 0, SHORT);
    }
}

void addresses(void)
{
    every_device(bend_address, 40);
}

static void bend_avail(struct dev *d, unsigned variant)
{
    static const uint16_t jumps[] = {RING + 1, 0x8000, 0xffff, 1000, 0, 0xff00};
    for (unsigned q = 0; q < 3; q++) {
        set_desc(&d->q[q], 0, (uint64_t)buf, 64, d->id == ID_RNG ? WRITE : 0, 0);
        put_avail(&d->q[q], 0);
        kick(d, q);
    }
    (void)wait_answer(d, 0, SHORT);
    for (unsigned q = 0; q < 3; q++) {
        d->q[q].avail->idx = jumps[variant];
        kick(d, q);
    }
}

void avail_index(void)
{
    every_device(bend_avail, 6);
}

void queue_sizes(void)
{
    static const uint32_t sizes[] = {0,    3,     100,   255,     257,       512,
                                     1024, 32768, 65536, 0x10100, 0xffffffff};
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++)
        for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            negotiate(d, ring_features);
            for (unsigned q = 0; q < QUEUES; q++)
                place_queue(d, q, sizes[s], (uint64_t)d->q[q].desc, (uint64_t)d->q[q].avail,
                            (uint64_t)d->q[q].used);
            set_reg(d, REG_STATUS, STATUS_RUNNING);
            offer(d, 0);
        }
    check_machine();
}

void ring_places(void)
{
    const uint64_t end = ram_end(), good = (uint64_t)device_at(0)->q[0].desc;
    const uint64_t places[] = {
        good + 1,
        good + 8,
        end - 8,
        end - 4096,
        end,
        end + 4096,
        0,
        UINT64_MAX,
        0xfffffffffffff000ULL,
        1ULL << 63,
        0xfee00000,
        0xd0000000,
        (uint64_t)device_at(0)->regs,
    };
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++)
        for (unsigned p = 0; p < sizeof(places) / sizeof(places[0]); p++)
            for (unsigned which = 0; which < 5; which++) {
                struct queue *q = &d->q[0];
                uint64_t at = places[p];
                negotiate(d, ring_features);
                /* One of the three, all three in the same place, or over those of queue 1. */
                place_queue(d, 0, RING, which == 0 || which == 3 ? at : (uint64_t)q->desc,
                            which == 1 || which == 3 ? at : (uint64_t)q->avail,
                            which == 2 || which == 3 ? at : (uint64_t)q->used);
                place_queue(d, 1, RING, (uint64_t)q->used, (uint64_t)q->desc, (uint64_t)q->desc);
                set_reg(d, REG_STATUS, STATUS_RUNNING);
                offer(d, 0);
            }
    check_machine();
}

/* Queue registers, features and status of a device that runs; then readiness taken and given. */
static void bend_late(struct dev *d, unsigned variant)
{
    static const uint64_t to[] = {0, UINT64_MAX, 0xfee00000, 1};
    for (unsigned q = 0; q < 3; q++)
        place_queue(d, q, (uint32_t)to[variant], to[variant], to[variant], to[variant]);
    set_reg(d, REG_DRIVER_FEATURES_SEL, variant & 1);
    set_reg(d, REG_DRIVER_FEATURES, 0xffffffff);
    set_reg(d, REG_STATUS, 3);
    set_reg(d, REG_STATUS, 0xff);
    for (unsigned q = 0; q < 3; q++) {
        set_reg(d, REG_QUEUE_SEL, q);
        set_reg(d, REG_QUEUE_READY, 0);
        set_reg(d, REG_QUEUE_READY, 1);
        set_desc(&d->q[q], 0, (uint64_t)buf, 64, d->id == ID_RNG ? WRITE : 0, 0);
    }
    offer(d, 0);
}

void late_registers(void)
{
    every_device(bend_late, 4);
}

void reset_in_io(void)
{
    struct dev *blk = device(ID_BLK, 0), *rng = device(ID_RNG, 0);
    for (unsigned round = 0; round < 40; round++) {
        bring_up(blk, ring_features);
        bring_up(rng, ring_features); /* the same rings: both devices write there */
        uint16_t head = blk_request(blk, 0, 0, (uint64_t)buf, BUF, true);
        for (unsigned i = 0; i < 64; i++)
            put_avail(&blk->q[0], head);
        kick(blk, 0);
        kick(rng, 0);
        pause_for(round * 50);
        set_reg(blk, REG_STATUS, 0);
        set_reg(rng, REG_STATUS, 0);
        kick(blk, 0);
    }
    check_machine();
}

void notify_early(void)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        set_reg(d, REG_STATUS, 0);
        for (unsigned q = 0; q < 8; q++)
            kick(d, q);
        set_reg(d, REG_STATUS, STATUS_RUNNING); /* without queues or features */
        for (unsigned q = 0; q < 8; q++)
            kick(d, q);
        negotiate(d, 0);
        set_reg(d, REG_STATUS, STATUS_RUNNING); /* ... and with features, but no queue */
        kick(d, 0);
        kick(d, 0xffffffff);
        kick(d, 0x10000);
    }
    check_machine();
}

/* --- two CPUs: one asks, one changes the question ----------------------------------------------
 */

static volatile bool flip, flipping;
static struct queue *flipped;
static volatile struct avail *flipped_avail;

static void flip_descriptors(void)
{
    const uint64_t good = (uint64_t)buf, end = ram_end();
    flipping = true;
    for (unsigned i = 0; flip; i++) {
        volatile struct desc *d = &flipped->desc[i % 3];
        d->addr = i & 4 ? end - 16 : good;
        d->len = i & 8 ? 0xffffffff : 512;
        d->flags = (uint16_t)(i >> 4);
        d->next = (uint16_t)(i & 64 ? 0xffff : (i + 1) % 3);
        if (i % 5 == 0)
            d->addr = UINT64_MAX - 255;
    }
    flipping = false;
}

static void flip_rings(void)
{
    flipping = true;
    for (unsigned i = 0; flip; i++) {
        flipped_avail->idx = (uint16_t)(flipped_avail->idx + (i & 1 ? 300 : 1));
        flipped_avail->ring[i % RING] = (uint16_t)(i * 37);
        flipped_avail->flags = (uint16_t)i;
        flipped_avail->ring[RING] = (uint16_t)(i * 3); /* used_event */
    }
    flipping = false;
}

static void flip_while_asking(void (*how)(void), unsigned rounds)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        if (d->id == ID_BALLOON)
            continue; /* it gives memory back as told, even that of this program */
        flipped = &d->q[0];
        flipped_avail = d->q[0].avail;
        flip = true;
        on_other_cpu(how);
        for (unsigned r = 0; r < rounds; r++) {
            if (r == 0 || reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
                bring_up(d, r & 1 ? ring_features : 0);
            if (d->id == ID_BLK)
                (void)blk_request(d, 0, r % 16, (uint64_t)buf, 512, true);
            else
                set_desc(&d->q[0], 0, (uint64_t)buf, 512, WRITE, 0);
            put_avail(&d->q[0], 0);
            kick(d, 0);
        }
        flip = false;
        while (flipping)
            pause_for(10);
    }
    check_machine();
}

void flipping_descriptors(void)
{
    flip_while_asking(flip_descriptors, 300);
}

void flipping_rings(void)
{
    flip_while_asking(flip_rings, 300);
}

static void bend_direction(struct dev *d, unsigned variant)
{
    if (d->id == ID_BLK) { /* header, data, status: every wrong combination */
        struct queue *q = &d->q[0];
        (void)blk_request(d, variant >> 3 & 1, 8, (uint64_t)buf, 512, true);
        for (unsigned i = 0; i < 3; i++)
            q->desc[i].flags = (uint16_t)((i < 2 ? NEXT : 0) | (variant >> i & 1 ? WRITE : 0));
    } else {
        all_queues(d, 0, (uint64_t)buf, 64, (uint16_t)(NEXT | (variant & 1 ? WRITE : 0)), 1);
        all_queues(d, 1, (uint64_t)buf, 64, variant & 2 ? WRITE : 0, 0);
    }
    offer(d, 0);
    (void)wait_answer(d, 0, SHORT);
}

void swapped_directions(void)
{
    every_device(bend_direction, 16);
}

/* --- registers ----------------------------------------------------------------------------------
 */

static void poke(volatile uint8_t *p, unsigned width, uint64_t v)
{
    if (width == 1)
        *p = (uint8_t)v;
    else if (width == 2)
        *(volatile uint16_t *)p = (uint16_t)v;
    else if (width == 4)
        *(volatile uint32_t *)p = (uint32_t)v;
    else
        *(volatile uint64_t *)p = v;
}

static uint64_t peek(volatile uint8_t *p, unsigned width)
{
    if (width == 1)
        return *p;
    if (width == 2)
        return *(volatile uint16_t *)p;
    return width == 4 ? *(volatile uint32_t *)p : *(volatile uint64_t *)p;
}

static void sweep(struct dev *d, unsigned from, unsigned to, unsigned step)
{
    for (unsigned off = from; off < to; off += step)
        for (unsigned width = 1; width <= 8; width *= 2) {
            (void)peek(d->regs + off, width);
            poke(d->regs + off, width, 0xa5a5a5a5a5a5a5a5ULL ^ off);
        }
}

void register_sweep(void)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        sweep(d, 0, 0x140, 4);
        bring_up(d, ring_features);
        sweep(d, 0, 0x140, 3);      /* unaligned, on a running device */
        sweep(d, 0xff0, 0x1000, 1); /* and over its end */
    }
    check_machine();
}

void config_space(void)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        bring_up(d, 0);
        sweep(d, REG_CONFIG, REG_CONFIG + 0x80, 2);
        sweep(d, 0x200, 0x1000, 0x111);
        for (unsigned width = 1; width <= 8; width *= 2)
            for (unsigned off = 0xff8; off < 0x1000; off++)
                (void)peek(d->regs + off, width);
    }
    check_machine();
}

void notify_storm(void)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        bring_up(d, 0);
        for (unsigned n = 0; n < 5000; n++)
            set_reg(d, REG_NOTIFY, n % 3);
        for (unsigned n = 0; n < 200; n++)
            set_reg(d, REG_NOTIFY, n * 7919);
    }
    check_machine();
}
