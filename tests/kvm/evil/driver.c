/* A virtio-mmio driver that does not care: every step can be left out, repeated or done wrong. */
#include "evil.h"

enum { DEVICES = 16 };

static struct {
    struct desc desc[RING];
    struct avail avail __attribute__((aligned(4096)));
    struct used used __attribute__((aligned(4096)));
} __attribute__((aligned(4096))) rings[QUEUES];

static struct dev devices[DEVICES];
static unsigned n_devices;
uint8_t buf[BUF] __attribute__((aligned(4096)));

/* As long as the longest descriptor of an attack: a device rightly writes all of it, and this
 * driver's own state must not follow. */
enum { ROOM = 512 };

static union {
    struct {
        uint32_t type, reserved;
        uint64_t sector;
    };
    uint8_t room[ROOM];
} blk_header;
static volatile uint8_t status_room[ROOM];

/* virtio_mmio.device=4K@0xADDRESS:IRQ ... */
static void find_devices(void)
{
    static const char key[] = "virtio_mmio.device=";
    for (const char *p = cmdline(); *p; p++) {
        unsigned i = 0;
        while (key[i] && p[i] == key[i])
            i++;
        if (key[i] || n_devices == DEVICES)
            continue;
        for (p += i; *p && *p != '@'; p++)
            ;
        uint64_t at = 0;
        for (p += 3; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
            at = at * 16 + (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
        struct dev *d = &devices[n_devices++];
        d->regs = (volatile uint8_t *)at;
        d->id = reg(d, REG_DEVICE_ID);
        for (unsigned q = 0; q < QUEUES; q++)
            d->q[q] = (struct queue){rings[q].desc, &rings[q].avail, &rings[q].used, RING, 0};
    }
    if (n_devices == 0)
        fail("no devices");
}

void move_rings(bool to_the_end)
{
    for (unsigned i = 0; i < n_devices; i++)
        for (unsigned q = 0; q < QUEUES; q++)
            devices[i].q[q].desc =
                to_the_end ? (volatile struct desc *)(ram_end() - (q + 1) * sizeof(rings[q].desc))
                           : rings[q].desc;
}

struct dev *device_at(unsigned i)
{
    if (n_devices == 0)
        find_devices();
    return i < n_devices ? &devices[i] : NULL;
}

struct dev *device(uint32_t id, unsigned nth)
{
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++)
        if (d->id == id && nth-- == 0)
            return d;
    fail("a device is missing");
}

uint32_t reg(struct dev *d, uint32_t off)
{
    return *(volatile uint32_t *)(d->regs + off);
}

void set_reg(struct dev *d, uint32_t off, uint32_t v)
{
    *(volatile uint32_t *)(d->regs + off) = v;
}

void set_reg64(struct dev *d, uint32_t off, uint64_t v)
{
    set_reg(d, off, (uint32_t)v);
    set_reg(d, off + 4, (uint32_t)(v >> 32));
}

void negotiate(struct dev *d, uint64_t want)
{
    set_reg(d, REG_STATUS, 0);
    while (reg(d, REG_STATUS))
        __asm__ volatile("pause");
    set_reg(d, REG_STATUS, 1);
    set_reg(d, REG_STATUS, 3);
    want |= FEATURE_VERSION_1;
    for (uint32_t half = 0; half < 2; half++) {
        set_reg(d, REG_DEVICE_FEATURES_SEL, half);
        uint32_t offered = reg(d, REG_DEVICE_FEATURES);
        set_reg(d, REG_DRIVER_FEATURES_SEL, half);
        set_reg(d, REG_DRIVER_FEATURES, offered & (uint32_t)(want >> (32 * half)));
    }
    set_reg(d, REG_STATUS, 11);
    if (!(reg(d, REG_STATUS) & 8))
        fail("features were not accepted");
}

void place_queue(struct dev *d, unsigned q, uint32_t size, uint64_t desc, uint64_t avail,
                 uint64_t used)
{
    set_reg(d, REG_QUEUE_SEL, q);
    set_reg(d, REG_QUEUE_NUM, size);
    set_reg64(d, REG_DESC, desc);
    set_reg64(d, REG_AVAIL, avail);
    set_reg64(d, REG_USED, used);
    set_reg(d, REG_QUEUE_READY, 1);
}

static void wipe_ring(struct queue *q)
{
    for (unsigned i = 0; i < RING; i++)
        q->desc[i] = (struct desc){0};
    q->avail->flags = 0;
    q->avail->idx = 0;
    q->used->flags = 0;
    q->used->idx = 0;
    q->seen = 0;
}

void bring_up(struct dev *d, uint64_t want)
{
    negotiate(d, want);
    for (unsigned i = 0; i < QUEUES; i++) {
        struct queue *q = &d->q[i];
        set_reg(d, REG_QUEUE_SEL, i);
        uint32_t max = reg(d, REG_QUEUE_NUM_MAX);
        if (max == 0)
            break;
        q->size = (uint16_t)(max < RING ? max : RING);
        wipe_ring(q);
        place_queue(d, i, q->size, (uint64_t)q->desc, (uint64_t)q->avail, (uint64_t)q->used);
    }
    set_reg(d, REG_STATUS, STATUS_RUNNING);
}

void set_desc(struct queue *q, unsigned i, uint64_t addr, uint32_t len, uint16_t flags,
              uint16_t next)
{
    q->desc[i].addr = addr;
    q->desc[i].len = len;
    q->desc[i].flags = flags;
    q->desc[i].next = next;
}

void put_avail(struct queue *q, uint16_t head)
{
    q->avail->ring[q->avail->idx % q->size] = head;
    __asm__ volatile("mfence" ::: "memory");
    q->avail->idx++;
}

void kick(struct dev *d, unsigned q)
{
    __asm__ volatile("mfence" ::: "memory");
    set_reg(d, REG_NOTIFY, q);
}

static uint64_t cycles(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

bool wait_used(struct dev *d, unsigned q)
{
    struct queue *v = &d->q[q];
    for (uint64_t start = cycles(); v->used->idx == v->seen;)
        if (cycles() - start > LONG)
            return false;
    v->seen++;
    return true;
}

bool wait_answer(struct dev *d, unsigned q, uint64_t patience)
{
    struct queue *v = &d->q[q];
    for (uint64_t start = cycles(); v->used->idx == v->seen;)
        if (reg(d, REG_STATUS) & STATUS_NEEDS_RESET)
            return true;
        else if (cycles() - start > patience)
            return false;
    v->seen = v->used->idx;
    return true;
}

uint16_t blk_request(struct dev *d, uint32_t type, uint64_t sector, uint64_t addr, uint32_t len,
                     bool to_guest)
{
    struct queue *q = &d->q[0];
    blk_header.type = type;
    blk_header.sector = sector;
    status_room[0] = 0xff;
    set_desc(q, 0, (uint64_t)&blk_header, 16, NEXT, 1);
    set_desc(q, 1, addr, len, (uint16_t)(NEXT | (to_guest ? WRITE : 0)), 2);
    set_desc(q, 2, (uint64_t)status_room, 1, WRITE, 0);
    return 0;
}

uint8_t blk_status(void)
{
    return status_room[0];
}

/* --- vsock ------------------------------------------------------------------------------------ */

struct vsock_hdr vsock_header(uint16_t op, uint32_t src_port, uint32_t dst_port, uint32_t len)
{
    return (struct vsock_hdr){.src_cid = 3,
                              .dst_cid = 2,
                              .src_port = src_port,
                              .dst_port = dst_port,
                              .len = len,
                              .type = 1,
                              .op = op,
                              .buf_alloc = 65536};
}

enum { RX_BUF = 4096, RX_BUFS = 8 };
static uint8_t rx[RX_BUFS][RX_BUF];
static struct vsock_hdr tx_header;

void vsock_post(struct dev *d, const struct vsock_hdr *h, uint32_t payload)
{
    struct queue *q = &d->q[1];
    tx_header = *h;
    set_desc(q, 0, (uint64_t)&tx_header, sizeof(tx_header), payload ? NEXT : 0, 1);
    set_desc(q, 1, (uint64_t)buf, payload, 0, 0);
    put_avail(q, 0);
    kick(d, 1);
}

bool vsock_send(struct dev *d, const struct vsock_hdr *h, uint32_t payload)
{
    vsock_post(d, h, payload);
    return wait_used(d, 1);
}

void vsock_receive_buffers(struct dev *d, unsigned n)
{
    struct queue *q = &d->q[0];
    for (unsigned i = 0; i < n && i < RX_BUFS; i++) {
        set_desc(q, i, (uint64_t)rx[i], RX_BUF, WRITE, 0);
        put_avail(q, (uint16_t)i);
    }
    kick(d, 0);
}

uint16_t vsock_received(struct dev *d)
{
    struct queue *q = &d->q[0];
    if (!wait_used(d, 0))
        return 0;
    unsigned id = q->used->ring[(uint16_t)(q->seen - 1) % q->size].id;
    if (id >= RX_BUFS)
        fail("vsock returned a buffer it was not given");
    const struct vsock_hdr *h = (const struct vsock_hdr *)(const void *)rx[id];
    uint16_t op = h->op;
    put_avail(q, (uint16_t)id);
    kick(d, 0);
    return op;
}

/* --- the network card -------------------------------------------------------------------------- */

/* The addresses are those of evil_host.c. */
void arp_request(void)
{
    static const uint8_t frame[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0,  15, 8, 6,
                                    0,    1,    8,    0,    6,    4,    0, 1, 2, 0, 0,  0,  0, 15,
                                    10,   0,    2,    15,   0,    0,    0, 0, 0, 0, 10, 0,  2, 2};
    for (unsigned i = 0; i < NET_ARP; i++)
        buf[i] = i < sizeof(struct net_hdr) ? 0 : frame[i - sizeof(struct net_hdr)];
}

void net_receive_buffers(struct dev *d)
{
    vsock_receive_buffers(d, RX_BUFS); /* they are the same: one descriptor each, on queue 0 */
}

/* --- is everything as it was? ----------------------------------------------------------------- */

static void check_disk(struct dev *d)
{
    bring_up(d, 0);
    for (unsigned i = 0; i < 512; i++)
        buf[i] = 0;
    put_avail(&d->q[0], blk_request(d, 0, 0, (uint64_t)buf, 512, true));
    kick(d, 0);
    if (!wait_used(d, 0) || blk_status() != 0)
        fail("the disk does not answer");
    for (unsigned i = 0; i < 512; i++)
        if (buf[i] != (uint8_t)(i * 7))
            fail("the disk has changed");
}

static void check_random(void)
{
    struct dev *d = device(ID_RNG, 0);
    bring_up(d, 0);
    set_desc(&d->q[0], 0, (uint64_t)buf, 64, WRITE, 0);
    put_avail(&d->q[0], 0);
    kick(d, 0);
    if (!wait_used(d, 0) || d->q[0].used->ring[0].len == 0)
        fail("no random numbers");
}

static void check_sockets(void)
{
    struct dev *d = device(ID_VSOCK, 0);
    bring_up(d, 0);
    vsock_receive_buffers(d, 4);
    struct vsock_hdr h = vsock_header(VSOCK_REQUEST, 77, ECHO_PORT, 0);
    if (!vsock_send(d, &h, 0) || vsock_received(d) != VSOCK_RESPONSE)
        fail("no connection");
    h.op = VSOCK_RST;
    if (!vsock_send(d, &h, 0))
        fail("no disconnection");
}

/* A FUSE server that starts over: INIT, which exchanges versions. */
static void check_share(void)
{
    struct fuse_init {
        uint32_t len, opcode;
        uint64_t unique, node;
        uint32_t uid, gid, pid, extra;
        uint32_t major, minor, readahead, flags;
    } __attribute__((packed));
    struct dev *d = device(ID_FS, 0);
    struct fuse_init *in = (struct fuse_init *)(void *)buf;
    const uint32_t *out = (const uint32_t *)(const void *)(buf + 512);
    bring_up(d, 0);
    *in = (struct fuse_init){
        .len = sizeof(*in), .opcode = 26, .unique = 4711, .major = 7, .minor = 38};
    set_desc(&d->q[1], 0, (uint64_t)in, sizeof(*in), NEXT, 1);
    set_desc(&d->q[1], 1, (uint64_t)out, 512, WRITE, 0);
    put_avail(&d->q[1], 0);
    kick(d, 1);
    if (!wait_used(d, 1) || out[1] != 0 || out[2] != 4711 || out[4] != 7)
        fail("the share does not answer");
}

/* The gateway says where it is. */
static void check_network(void)
{
    struct dev *d = device(ID_NET, 0);
    bring_up(d, 0);
    net_receive_buffers(d);
    arp_request();
    set_desc(&d->q[1], 0, (uint64_t)buf, NET_ARP, 0, 0);
    put_avail(&d->q[1], 0);
    kick(d, 1);
    const uint8_t *arp = rx[0] + sizeof(struct net_hdr) + 14;
    if (!wait_used(d, 1) || !wait_used(d, 0) || d->q[0].used->ring[0].id != 0 || arp[7] != 2)
        fail("the network does not answer");
}

void check_machine(void)
{
    check_disk(device(ID_BLK, 0));
    check_disk(device(ID_BLK, 1));
    check_random();
    check_sockets();
    check_share();
    check_network();
}
