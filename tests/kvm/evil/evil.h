/* A hostile guest: no kernel, one program in ring 0 that knows virtio and
 * breaks its rules. It runs one attack of attacks.def, named by init= on the command line, reports
 * on the serial port, and ends by a triple fault.
 *
 * It is compiled like a kernel: no library, no floating point, interrupts off unless an attack
 * turns them on.
 */
#ifndef EVIL_H
#define EVIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- machine.c ------------------------------------------------------------------------------ */

void say(const char *text);
void say_number(const char *text, uint64_t n);
void fail(const char *text) __attribute__((noreturn));

/* Maps 2 MiB at any physical address; there is one such window. */
volatile uint8_t *window(uint64_t physical);
uint64_t ram_end(void); /* of what begins at zero, or at 1 MiB */
const char *cmdline(void);
/* Runs fn on the second CPU, once per boot. */
void on_other_cpu(void (*fn)(void));
void pause_for(unsigned spins);

int guarded(void (*fn)(uint64_t), uint64_t arg);
void triple_fault(void) __attribute__((noreturn));

static inline void outb(uint16_t port, uint8_t v)
{
    __asm__ volatile("outb %0, %1" ::"a"(v), "Nd"(port));
}
static inline void outw(uint16_t port, uint16_t v)
{
    __asm__ volatile("outw %0, %1" ::"a"(v), "Nd"(port));
}
static inline void outl(uint16_t port, uint32_t v)
{
    __asm__ volatile("outl %0, %1" ::"a"(v), "Nd"(port));
}
static inline uint8_t inb(uint16_t port)
{
    uint8_t v;
    __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint16_t inw(uint16_t port)
{
    uint16_t v;
    __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint32_t inl(uint16_t port)
{
    uint32_t v;
    __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}

/* --- driver.c: a virtio driver that can be told to lie --------------------------------------- */

enum { ID_NET = 1, ID_BLK = 2, ID_RNG = 4, ID_BALLOON = 5, ID_VSOCK = 19, ID_FS = 26 };
enum {
    REG_MAGIC = 0x000,
    REG_DEVICE_ID = 0x008,
    REG_DEVICE_FEATURES = 0x010,
    REG_DEVICE_FEATURES_SEL = 0x014,
    REG_DRIVER_FEATURES = 0x020,
    REG_DRIVER_FEATURES_SEL = 0x024,
    REG_QUEUE_SEL = 0x030,
    REG_QUEUE_NUM_MAX = 0x034,
    REG_QUEUE_NUM = 0x038,
    REG_QUEUE_READY = 0x044,
    REG_NOTIFY = 0x050,
    REG_STATUS = 0x070,
    REG_DESC = 0x080,
    REG_AVAIL = 0x090,
    REG_USED = 0x0a0,
    REG_CONFIG = 0x100,
};
enum { STATUS_NEEDS_RESET = 0x40, STATUS_RUNNING = 0xf };
enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };
enum { RING = 256, QUEUES = 5, BUF = 65536 };
#define FEATURE_INDIRECT (1ULL << 28)
#define FEATURE_EVENT_IDX (1ULL << 29)
#define FEATURE_VERSION_1 (1ULL << 32)

struct desc {
    uint64_t addr;
    uint32_t len;
    uint16_t flags, next;
};
struct avail {
    uint16_t flags, idx, ring[RING + 1];
};
struct used {
    uint16_t flags, idx;
    struct {
        uint32_t id, len;
    } ring[RING];
};
struct queue {
    volatile struct desc *desc;
    volatile struct avail *avail;
    volatile struct used *used;
    uint16_t size, seen;
};

struct dev {
    volatile uint8_t *regs;
    uint32_t id;
    struct queue q[QUEUES];
};

extern uint8_t buf[BUF]; /* scratch memory for whatever is sent or received */

/* The nth device of a kind. */
struct dev *device(uint32_t id, unsigned nth);
struct dev *device_at(unsigned i); /* NULL: there are no more */

uint32_t reg(struct dev *d, uint32_t off);
void set_reg(struct dev *d, uint32_t off, uint32_t v);
void set_reg64(struct dev *d, uint32_t off, uint64_t v);

/* Reset, features (of those wanted, what is offered), all queues, DRIVER_OK. */
void bring_up(struct dev *d, uint64_t want);
/* The same up to FEATURES_OK, queues left alone. */
void negotiate(struct dev *d, uint64_t want);
/* Moves descriptor tables to the end of memory, or back. */
void move_rings(bool to_the_end);
void place_queue(struct dev *d, unsigned q, uint32_t size, uint64_t desc, uint64_t avail,
                 uint64_t used);
void set_desc(struct queue *q, unsigned i, uint64_t addr, uint32_t len, uint16_t flags,
              uint16_t next);
void put_avail(struct queue *q, uint16_t head);
void kick(struct dev *d, unsigned q);
/* Waits for an answer. False: it timed out. */
bool wait_used(struct dev *d, unsigned q);
/* ... or for a failure. A device need not answer nonsense: then a short wait is enough. */
#define SHORT 100000000ULL /* cycles of the CPU's clock */
#define LONG 20000000000ULL
bool wait_answer(struct dev *d, unsigned q, uint64_t patience);

/* --- requests that are right ------------------------------------------------------------------ */

/* Fills in a request of one data buffer; returns its head. */
uint16_t blk_request(struct dev *d, uint32_t type, uint64_t sector, uint64_t addr, uint32_t len,
                     bool to_guest);
uint8_t blk_status(void); /* of the last one; 0xff = not answered yet */

struct vsock_hdr {
    uint64_t src_cid, dst_cid;
    uint32_t src_port, dst_port, len;
    uint16_t type, op;
    uint32_t flags, buf_alloc, fwd_cnt;
} __attribute__((packed));
enum {
    VSOCK_REQUEST = 1,
    VSOCK_RESPONSE,
    VSOCK_RST,
    VSOCK_SHUTDOWN,
    VSOCK_RW,
    VSOCK_CREDIT_UPDATE
};
enum { ECHO_PORT = 5000 };
/* A header from the guest to the host. */
struct vsock_hdr vsock_header(uint16_t op, uint32_t src_port, uint32_t dst_port, uint32_t len);
/* Sends it, followed by `payload` bytes; vsock_send: false if the device did not take it. */
void vsock_post(struct dev *d, const struct vsock_hdr *h, uint32_t payload);
bool vsock_send(struct dev *d, const struct vsock_hdr *h, uint32_t payload);
/* Gives the device n buffers to receive into. */
void vsock_receive_buffers(struct dev *d, unsigned n);
/* The op of the next packet received, 0 when none comes. */
uint16_t vsock_received(struct dev *d);

/* In front of each frame, in both directions. */
struct net_hdr {
    uint8_t flags, gso_type;
    uint16_t hdr_len, gso_size, csum_start, csum_offset, num_buffers;
} __attribute__((packed));
enum { NET_ARP = sizeof(struct net_hdr) + 14 + 28 };
/* Writes a question for the gateway's address to buf, NET_ARP bytes. */
void arp_request(void);
void net_receive_buffers(struct dev *d);

/* Checks that everything still works; if not, the attack has succeeded (fail). */
void check_machine(void);

#endif
