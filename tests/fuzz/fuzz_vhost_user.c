/* The vhost-user back end: messages whole and in pieces, right and wrong, with descriptors of all
 * kinds, while the rings run. No descriptor may leak, and nothing may block. */
#include "fuzz_guest.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "virtio/vhost_user.h"
#include "virtio/vsock.h"

enum { N_FDS = 6, FD_MEM = 0, FD_KICK = 1, FD_CALL = 2, RAM_FILE = 65536 };

static int fds[N_FDS]; /* memory, eventfd, socket, pipe, its other end, epoll */
static uint8_t *shared;

static void open_fds(void)
{
    int p[2];
    if (shared)
        return;
    fds[FD_MEM] = memfd_create("ram", MFD_CLOEXEC);
    fds[FD_KICK] = eventfd(0, EFD_CLOEXEC);
    if (ftruncate(fds[FD_MEM], RAM_FILE) < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, p) < 0)
        abort();
    fds[FD_CALL] = p[0];
    if (pipe(p) < 0)
        abort();
    fds[3] = p[0];
    fds[4] = p[1];
    fds[5] = epoll_create1(EPOLL_CLOEXEC);
    shared = mmap(NULL, RAM_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[FD_MEM], 0);
}

static void send_bytes(int fd, const void *p, size_t n, struct input *in, unsigned n_fds,
                       unsigned first)
{
    union {
        struct cmsghdr align;
        uint8_t space[CMSG_SPACE(12 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)p, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        int pass[12];
        for (unsigned i = 0; i < n_fds; i++)
            pass[i] = fds[i == 0 ? first % N_FDS : in_u8(in) % N_FDS];
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), pass, n_fds * sizeof(int));
    }
    (void)sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void send_message(int fd, struct input *in, uint32_t request, const void *p, uint32_t n,
                         int pass)
{
    uint8_t b[512];
    uint32_t h[3] = {request, 1, n};
    memcpy(b, h, 12);
    memcpy(b + 12, p, n);
    send_bytes(fd, b, 12 + n, in, pass >= 0 ? 1 : 0, (unsigned)pass);
}

/* One of the messages that set a ring up; mostly right. */
static void good_message(int fd, struct input *in)
{
    uint8_t how = in_u8(in);
    uint32_t q = in_u8(in) % 4;
    uint64_t f = VIRTIO_BASE_FEATURES | 1ULL << 30, u = q;
    uint32_t st[2] = {q, how & 128 ? in_u32(in) : 16};
    uint64_t at = (uint64_t)q * 1024;
    uint64_t addr[5] = {q, at, at + 512, at + 256, 0};
    uint64_t table[5] = {1, 0, RAM_FILE, 0, 0};
    if (how & 64)
        addr[1 + in_u8(in) % 3] = in_u64(in);
    if (how & 32)
        table[1 + in_u8(in) % 4] = in_u64(in);
    uint32_t cfg[16] = {in_u8(in), 8};
    switch (how % 14) {
    case 0:
        send_message(fd, in, 2, &f, 8, -1);
        break;
    case 1:
        send_message(fd, in, 5, table, 40, FD_MEM);
        break;
    case 2:
        send_message(fd, in, 8, st, 8, -1);
        break;
    case 3:
        send_message(fd, in, 9, addr, 40, -1);
        break;
    case 4:
        st[1] &= how & 128 ? UINT32_MAX : 0;
        send_message(fd, in, 10, st, 8, -1);
        break;
    case 5:
        send_message(fd, in, 11, st, 8, -1);
        break;
    case 6:
        send_message(fd, in, 12, &u, 8, FD_KICK);
        break;
    case 7:
        send_message(fd, in, 13, &u, 8, FD_CALL);
        break;
    case 8:
        send_message(fd, in, 18, st, 8, -1);
        break;
    case 9:
        send_message(fd, in, 24, cfg, 20, -1);
        break;
    case 10:
        send_message(fd, in, 25, cfg, 20, -1);
        break;
    case 11: /* all of it at once */
        send_message(fd, in, 2, &f, 8, -1);
        send_message(fd, in, 5, table, 40, FD_MEM);
        send_message(fd, in, 8, st, 8, -1);
        send_message(fd, in, 9, addr, 40, -1);
        send_message(fd, in, 12, &u, 8, FD_KICK);
        send_message(fd, in, 13, &u, 8, FD_CALL);
        send_message(fd, in, 18, st, 8, -1);
        break;
    default:
        send_message(fd, in, in_u8(in) % 40, cfg, (how & 3) * 4U, -1);
        break;
    }
}

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 64; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void step(int fd, struct input *in, struct loop *loop)
{
    uint8_t raw[300];
    uint64_t one = 1, n;
    switch (in_u8(in) % 8) {
    case 0: { /* bytes as they are, with descriptors or without */
        size_t len = in_u8(in);
        unsigned n_fds = in_u8(in) % 24;
        len = in_bytes(in, raw, len);
        if (len > 0)
            send_bytes(fd, raw, len, in, n_fds > 12 ? 0 : n_fds, in_u8(in));
        break;
    }
    case 1: { /* what the guest does to its memory */
        size_t at = in_u16(in), len = in_u8(in);
        (void)in_bytes(in, shared + at, len < RAM_FILE - at ? len : RAM_FILE - at);
        break;
    }
    case 2: { /* a buffer on a ring */
        struct vring_desc d = {.addr = in_u16(in), .len = in_u8(in), .flags = in_u8(in) & 7};
        size_t q = in_u8(in) % 3 * 1024UL;
        uint16_t *avail = (uint16_t *)(void *)(shared + q + 256);
        memcpy(shared + q, &d, sizeof(d));
        avail[2 + avail[1] % 16] = 0;
        avail[1]++;
        break;
    }
    case 3:
        (void)write(fds[FD_KICK], &one, 8);
        (void)read(fds[FD_KICK], &n, 8); /* so that it never fills up */
        break;
    case 4:
        (void)loop_turn(loop, 0);
        break;
    default:
        good_message(fd, in);
        break;
    }
    (void)recv(fd, raw, sizeof(raw), MSG_DONTWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct loop loop;
    struct virtio_dev *dev;
    struct vhost_user *v;
    int sp[2];
    open_fds();
    int before = count_fds();
    memset(shared, 0, 4096);
    if (loop_init(&loop) < 0 || virtio_vsock_new(&dev, 3) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp) < 0 ||
        vhost_user_new_connected(&v, &loop, dev, sp[1], NULL, NULL) < 0)
        abort();
    while (in.n > 0)
        step(sp[0], &in, &loop);
    for (int i = 0; i < 4; i++)
        (void)loop_turn(&loop, 0);
    vhost_user_free(v);
    virtio_dev_free(dev);
    loop_fini(&loop);
    close(sp[0]);
    uint8_t sink[64];
    while (recv(fds[FD_CALL], sink, sizeof(sink), MSG_DONTWAIT) > 0)
        ;
    if (count_fds() != before)
        abort();
    return 0;
}
