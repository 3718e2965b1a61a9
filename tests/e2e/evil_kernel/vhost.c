/* The devices' side of vhost-user: each takes one connection, in the monitor. */
#include "evil.h"

#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    DEVICES_MAX = 19,
    QUEUES = 3,
    QSIZE = 16,
    RAM = 1 << 20,
    FDS_MOST = 250, /* the host's limit is 253 */
    VERSION = 1,
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    SET_MEM_TABLE = 5,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ENABLE = 18,
    REQUESTS = 48,
};

#define GPA 0x40000000UL
#define USER 0x7f0000000000UL

struct msg {
    uint32_t request, flags, size;
    union {
        uint8_t bytes[4096];
        uint64_t u64;
        uint32_t u32[2];
        struct {
            uint32_t index, flags;
            uint64_t desc, used, avail, log;
        } addr;
        struct {
            uint32_t n, padding;
            struct {
                uint64_t gpa, size, user, offset;
            } region[8];
        } mem;
    } p __attribute__((packed));
} __attribute__((packed));

static int device[DEVICES_MAX];
static unsigned n_devices, queues[DEVICES_MAX];

/* By the kind that the command line gives: virtio_uml.device=/devN:KIND */
static unsigned queues_of(const char *path)
{
    char want[64];
    (void)snprintf(want, sizeof(want), "virtio_uml.device=%s:", path);
    for (char **a = arguments; *a; a++)
        if (strncmp(*a, want, strlen(want)) == 0) {
            int kind = atoi(*a + strlen(want));
            return kind == 19 ? 3 : kind == 1 ? 2 : 1; /* vsock, net; disk, rng */
        }
    fail("%s has no kind", path);
}

static void connect_all(void)
{
    for (; n_devices < DEVICES_MAX; n_devices++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        (void)snprintf(a.sun_path, sizeof(a.sun_path), "/dev%u", n_devices);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
            (void)close(fd);
            break;
        }
        (void)fcntl(fd, F_SETFL, O_NONBLOCK);
        queues[n_devices] = queues_of(a.sun_path);
        device[n_devices] = fd;
    }
    if (n_devices < 5)
        fail("only %u devices", n_devices);
}

/* Whether the monitor has hung up, or does within that time. */
static bool gone(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, ms) > 0;
}

/* Bytes, with descriptors; whatever fits. */
static void post(int fd, const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * FDS_MOST)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {(void *)bytes, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        memset(&control, 0, sizeof(control));
        m.msg_control = control.buf;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * n_fds);
    }
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    (void)poll(&p, 1, 2000);
    (void)sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_msg(int fd, struct msg *m, uint32_t request, uint32_t size, const int *fds,
                     unsigned n_fds)
{
    m->request = request;
    m->flags = VERSION;
    m->size = size;
    post(fd, m, 12 + size, fds, n_fds);
}

static void send_u64(int fd, uint32_t request, uint64_t value, int with)
{
    struct msg m = {.p.u64 = value};
    send_msg(fd, &m, request, 8, &with, with >= 0);
}

/* --- memory and rings that are as they should be ---------------------------------------------- */

static uint8_t *ram;
static int ram_fd, kick[DEVICES_MAX][QUEUES];

static void make_ram(void)
{
    ram_fd = open("/tmp/ram", O_RDWR | O_CREAT, 0600);
    if (lseek(ram_fd, RAM - 1, SEEK_SET) < 0 || write(ram_fd, "", 1) != 1)
        fail("no memory file");
    ram = (uint8_t *)call(SYS_mmap, 0x10000000000, RAM, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, ram_fd, 0);
    if ((long)ram < 0)
        fail("memory cannot be mapped");
}

static void bring_up(unsigned i)
{
    int fd = device[i], pair[2];
    struct msg m = {0};
    send_msg(fd, &m, SET_OWNER, 0, NULL, 0);
    send_u64(fd, SET_FEATURES, 1ULL << 32, -1); /* VIRTIO_F_VERSION_1 */
    memset(&m, 0, sizeof(m));
    m.p.mem.n = 1;
    m.p.mem.region[0].gpa = GPA;
    m.p.mem.region[0].size = RAM;
    m.p.mem.region[0].user = USER;
    send_msg(fd, &m, SET_MEM_TABLE, 8 + 32, &ram_fd, 1);
    for (uint32_t q = 0; q < queues[i]; q++) {
        uint64_t base = USER + 65536UL * (q + 3 * (i % 4));
        kick[i][q] = eventfd(0, EFD_NONBLOCK);
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
            fail("no socket pair");
        send_u64(fd, SET_VRING_NUM, q | (uint64_t)QSIZE << 32, -1);
        send_u64(fd, SET_VRING_BASE, q, -1);
        memset(&m, 0, sizeof(m));
        m.p.addr.index = q;
        m.p.addr.desc = base;
        m.p.addr.avail = base + 4096;
        m.p.addr.used = base + 8192;
        send_msg(fd, &m, SET_VRING_ADDR, 40, NULL, 0);
        send_u64(fd, SET_VRING_CALL, q, pair[1]);
        send_u64(fd, SET_VRING_KICK, q, kick[i][q]);
    }
}

static void bring_up_all(void)
{
    connect_all();
    make_ram();
    for (unsigned i = 0; i < n_devices; i++)
        bring_up(i);
    for (unsigned i = 0; i < n_devices; i++)
        if (gone(device[i], 20))
            fail("device %u does not come up", i);
}

static void kick_all(void)
{
    const uint64_t one = 1;
    for (unsigned i = 0; i < n_devices; i++)
        for (unsigned q = 0; q < QUEUES; q++)
            if (kick[i][q] > 0)
                (void)!write(kick[i][q], &one, sizeof(one));
}

static void wait_ms(int ms)
{
    (void)CALL3(SYS_poll, 0, 0, ms);
}

/* --- attacks ---------------------------------------------------------------------------------- */

void vhost_garbage(void)
{
    static uint8_t junk[65536];
    connect_all();
    for (unsigned i = 0; i < n_devices; i++) {
        fill_with_any(junk, sizeof(junk));
        for (unsigned k = 0; k < 16; k++)
            post(device[i], junk + k * 4096, 4096, NULL, 0);
        if (!gone(device[i], 2000))
            fail("device %u listens to that", i);
    }
}

void vhost_headers(void)
{
    static const struct {
        uint32_t request, flags, size;
    } bad[] = {
        {GET_FEATURES, VERSION, 0xffffffff},
        {SET_OWNER, VERSION, 4096},
        {SET_OWNER, 0, 0},
        {GET_FEATURES, VERSION | 4, 0},
        {9999, VERSION, 8},
        {SET_MEM_TABLE, VERSION, 0},
        {SET_VRING_KICK, VERSION, 7},
        {0, VERSION, 0},
    };
    connect_all();
    for (unsigned i = 0; i < n_devices; i++) {
        struct msg m = {bad[i % COUNT(bad)].request, bad[i % COUNT(bad)].flags,
                        bad[i % COUNT(bad)].size};
        for (unsigned k = 0; k < 12; k++) /* byte by byte */
            post(device[i], (char *)&m + k, 1, NULL, 0);
        post(device[i], m.p.bytes, 4096, NULL, 0);
        if (!gone(device[i], 2000))
            fail("device %u accepts a malformed header", i);
    }
}

/* More than a message may have, with each of its bytes, and where none belong. */
void vhost_descriptors(void)
{
    int fds[FDS_MOST];
    connect_all();
    make_ram();
    for (unsigned k = 0; k < FDS_MOST; k++)
        fds[k] = k % 3 == 0 ? 1 : k % 3 == 1 ? ram_fd : device[0];
    for (unsigned i = 0; i < n_devices; i++) {
        struct msg m = {0};
        static const uint32_t requests[] = {SET_OWNER,      SET_MEM_TABLE, SET_VRING_KICK,
                                            SET_VRING_CALL, GET_FEATURES,  SET_FEATURES};
        uint32_t request = requests[i % COUNT(requests)];
        m.request = request;
        m.flags = VERSION;
        m.size = request == SET_OWNER || request == GET_FEATURES ? 0 : 8;
        for (unsigned k = 0; k < 12 + m.size; k++)
            post(device[i], (char *)&m + k, 1, fds, FDS_MOST);
        for (unsigned k = 0; k < 100; k++)
            post(device[i], &m, 12 + m.size, fds, FDS_MOST);
        if (!gone(device[i], 2000))
            fail("device %u takes %d descriptors", i, FDS_MOST);
    }
}

void vhost_regions(void)
{
    static const uint64_t lies[][4] = {
        {GPA, RAM + 4096, USER, 0}, {GPA, 1UL << 62, USER, 0}, {GPA, RAM, USER, 1UL << 63},
        {~0UL, RAM, USER, 0},       {GPA, RAM, ~0UL - 1, 0},   {GPA, 0, USER, 0},
        {GPA, RAM, USER, 4097},     {GPA, ~0UL, 0, ~0UL},
    };
    connect_all();
    make_ram();
    for (unsigned i = 0; i < n_devices; i++) {
        struct msg m = {0};
        m.p.mem.n = 1;
        memcpy(&m.p.mem.region[0], lies[i % COUNT(lies)], 32);
        send_msg(device[i], &m, SET_MEM_TABLE, 8 + 32, &ram_fd, 1);
        if (!gone(device[i], 2000))
            fail("device %u believes region %zu", i, i % COUNT(lies));
    }
}

/* Well-formed messages in any order, with any values; replies are not read. */
void vhost_order(void)
{
    connect_all();
    make_ram();
    int event = eventfd(0, EFD_NONBLOCK);
    for (unsigned k = 0; k < 20000; k++) {
        struct msg m = {0};
        static const uint32_t sizes[] = {0, 8, 8, 40, 40, 12};
        int with[2] = {any(2) ? ram_fd : event, event};
        uint32_t request = 1 + any(REQUESTS), size = sizes[any(COUNT(sizes))];
        if (request == SET_OWNER || request == GET_FEATURES)
            size = 0;
        if (any(2))
            fill_with_any(m.p.bytes, 64);
        else
            m.p.u32[0] = any(3);
        send_msg(device[any(n_devices)], &m, request, size, with, any(8) ? 0 : 1 + any(2));
    }
}

void vhost_rings(void)
{
    bring_up_all();
    for (unsigned round = 0; round < 300; round++) {
        if (round % 3 == 0) {
            fill_with_any(ram, RAM / 4);
        } else { /* descriptors that are nearly right */
            for (unsigned at = 0; at + 16 <= RAM / 4; at += 16 * (1 + any(8))) {
                struct vring_desc d = {GPA + any(RAM), any(9000), (uint16_t)any(8),
                                       (uint16_t)any(QSIZE + 1)};
                memcpy(ram + at, &d, sizeof(d));
            }
            for (unsigned q = 0; q < 12; q++)
                *(uint16_t *)(ram + q * 65536 + 4096 + 2) += (uint16_t)any(QSIZE + 1);
        }
        kick_all();
        if (round % 16 == 0)
            wait_ms(1);
    }
    wait_ms(50);
}

/* Takes the file away from under the monitor while it serves. */
void vhost_truncate(void)
{
    bring_up_all();
    kick_all();
    wait_ms(20);
    for (unsigned k = 0; k < 20; k++) {
        int again = open("/tmp/ram", O_RDWR | O_TRUNC);
        kick_all();
        wait_ms(2);
        if (k % 2 && lseek(again, RAM - 1, SEEK_SET) > 0)
            (void)!write(again, "", 1);
        (void)close(again);
        kick_all();
    }
    unsigned lost = 0;
    for (unsigned i = 0; i < n_devices; i++)
        lost += gone(device[i], 50);
    if (!lost)
        fail("no device noticed");
}

/* Half a message each, for ever. */
void vhost_silence(void)
{
    connect_all();
    for (unsigned i = 0; i < n_devices; i++)
        post(device[i], "\1\0\0\0\1", 5, NULL, 0);
    hold("%u devices", n_devices);
}
