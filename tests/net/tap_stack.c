/* The network stack behind a TAP device in a network namespace of its own, so that the real Linux
 * network plays the guest, and any program in that namespace a guest program.
 *
 *     tap_stack [OPTIONS] -- COMMAND...     (root)
 *
 * runs COMMAND inside; the stack runs outside until COMMAND exits, with its exit code. The guest is
 * 10.0.2.15 and fd00:2::15; the gateway 10.0.2.2 and fd00:2::2 stands for the host's loopback.
 *
 *   --publish PORT:GUEST   127.0.0.1:PORT leads to the guest (also /udp)
 *   --deny PORT            connections to that port are denied
 *   --max N                connections at once
 *   --rules RULES          a policy (net/policy.h) decides; port 53 of the gateway answers names
 *   --resolver IP:PORT     whom to ask for them
 *   --strict               a flow that a name has allowed must show one
 *   --copies               as if the kernel had no SO_PEEK_OFF
 *   --stats FILE           counters and CPU seconds of the stack, as JSON
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/gate.h"
#include "net/net.h"
#include "util/cleanup.h"

enum {
    HDR = sizeof(struct virtio_net_hdr),
    FRAMES_PER_EVENT = 64,
    PORTS_MAX = 16,
    LINGER_MS = 3000
};

struct tap {
    struct link link;
    struct loop_src src;
    uint8_t in[HDR + LINK_FRAME_MAX], out[HDR + LINK_FRAME_MAX];
    struct iovec room;
    uint64_t lost;
};

static struct {
    uint16_t deny[PORTS_MAX];
    unsigned n_deny;
    struct {
        uint16_t port, guest;
        bool udp;
    } publish[PORTS_MAX];
    unsigned n_publish;
    const char *stats, *rules;
    struct net_config cfg;
    struct dns_config dns;
    bool strict;
} opt;

static struct loop loop;
static int exit_code;

/* --- the link -------------------------------------------------------------------------------- */

static size_t tap_reserve(struct link *l, size_t min, size_t want, const struct iovec **iov,
                          unsigned *n)
{
    struct tap *t = CONTAINER_OF(l, struct tap, link);
    (void)min;
    t->room = (struct iovec){.iov_base = t->out + HDR, .iov_len = MIN(want, LINK_FRAME_MAX)};
    *iov = &t->room;
    *n = 1;
    return t->room.iov_len;
}

static void tap_commit(struct link *l, const struct link_offload *o, size_t len)
{
    struct tap *t = CONTAINER_OF(l, struct tap, link);
    if (len == 0)
        return;
    struct virtio_net_hdr h = {.flags = o->csum ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0,
                               .gso_type = o->gso == LINK_GSO_TCP4   ? VIRTIO_NET_HDR_GSO_TCPV4
                                           : o->gso == LINK_GSO_TCP6 ? VIRTIO_NET_HDR_GSO_TCPV6
                                                                     : VIRTIO_NET_HDR_GSO_NONE,
                               .hdr_len = o->hdr_len,
                               .gso_size = o->gso_size,
                               .csum_start = o->csum_start,
                               .csum_offset = o->csum_offset};
    memcpy(t->out, &h, HDR);
    if (write(t->src.fd, t->out, HDR + len) < 0)
        t->lost++;
}

static void tap_flush(struct link *l)
{
    (void)l;
}

static const struct link_ops tap_ops = {tap_reserve, tap_commit, tap_flush};

static void on_tap(struct loop_src *src, uint32_t events)
{
    struct tap *t = CONTAINER_OF(src, struct tap, src);
    (void)events;
    for (unsigned i = 0; i < FRAMES_PER_EVENT; i++) {
        ssize_t k = read(src->fd, t->in, sizeof(t->in));
        if (k < HDR + LINK_ETH)
            break;
        struct virtio_net_hdr h;
        memcpy(&h, t->in, HDR);
        struct link_offload o = {.csum = h.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                 .csum_start = h.csum_start,
                                 .csum_offset = h.csum_offset,
                                 .gso_size = h.gso_size};
        struct iovec iov = {.iov_base = t->in + HDR, .iov_len = (size_t)k - HDR};
        t->link.user->input(t->link.ctx, &o, &iov, 1, iov.iov_len);
    }
    t->link.user->input_end(t->link.ctx);
}

/* --- hooks ----------------------------------------------------------------------------------- */

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    (void)ctx;
    v->action = NET_ALLOW;
    for (unsigned i = 0; i < opt.n_deny; i++)
        if (id->peer.port == opt.deny[i])
            v->action = NET_DENY;
    if (addr_equal(&v->to.addr, &opt.cfg.gateway4))
        (void)addr_parse("127.0.0.1", &v->to.addr);
    else if (addr_equal(&v->to.addr, &opt.cfg.gateway6))
        (void)addr_parse("::1", &v->to.addr);
}

static const struct net_hooks hooks = {.verdict = on_verdict};

static void on_told(void *ctx, const struct gate_decision *d)
{
    static const char *const what[] = {"flow", "shown", "question", "ended"};
    (void)ctx;
    (void)fprintf(stderr, "%s %s %s\n", what[d->what], d->name, d->why);
}

/* --- the namespace --------------------------------------------------------------------------- */

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static int open_tap(void)
{
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "eth0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0 ||
        ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0)
        die("tap");
    static const char set_up[] = "ip link set lo up && ip link set eth0 address 02:00:00:00:00:0f "
                                 "mtu 1500 up && ip addr add 10.0.2.15/24 dev eth0 && "
                                 "ip route add default via 10.0.2.2 && "
                                 "ip -6 addr add fd00:2::15/64 dev eth0 nodad && "
                                 "ip -6 route add default via fd00:2::2";
    if (system(set_up) != 0)
        die("ip");
    return fd;
}

static void send_fd(int sock, int fd)
{
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(int));
    if (sendmsg(sock, &m, 0) != 1)
        die("sendmsg");
}

static int receive_fd(int sock)
{
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    int fd;
    if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m))
        exit(99);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
    return fd;
}

static void run_inside(int sock, char **argv)
{
    char byte;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET) < 0)
        die("unshare");
    int tap = open_tap();
    send_fd(sock, tap);
    if (read(sock, &byte, 1) != 1) /* the stack is ready */
        exit(99);
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execvp(argv[0], argv);
        die(argv[0]);
    }
    int status = 0;
    (void)waitpid(pid, &status, 0);
    uint8_t code = WIFEXITED(status) ? (uint8_t)WEXITSTATUS(status) : 128;
    (void)!write(sock, &code, 1);
    (void)!read(sock, &byte, 1); /* the namespace stays until the stack has seen the last packets */
    exit(0);
}

static void on_child(struct loop_src *src, uint32_t events)
{
    uint8_t code;
    (void)events;
    exit_code = read(src->fd, &code, 1) == 1 ? code : 128;
    loop_del(&loop, src);
    loop_stop(&loop);
}

/* --- the rest -------------------------------------------------------------------------------- */

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void write_stats(const struct net *n, const struct tap *t)
{
    const struct net_stats *s = net_stats(n);
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    FILE *f = fopen(opt.stats, "w");
    if (!f)
        die(opt.stats);
    (void)fprintf(f,
                  "{\"user\": %.3f, \"system\": %.3f, \"rss_kb\": %ld, \"tcp_opened\": %llu, "
                  "\"tcp_refused\": %llu, \"tcp_denied\": %llu, \"tcp_failed\": %llu, "
                  "\"tcp_flows\": %u, \"udp_flows\": %u, \"held\": %zu, \"resent\": %llu, "
                  "\"out_of_order\": %llu, \"bogus_acks\": %llu, \"memory_full\": %llu, "
                  "\"lost\": %llu}\n",
                  seconds(u.ru_utime), seconds(u.ru_stime), u.ru_maxrss,
                  (unsigned long long)s->tcp_opened, (unsigned long long)s->tcp_refused,
                  (unsigned long long)s->tcp_denied, (unsigned long long)s->tcp_failed,
                  s->tcp_flows, s->udp_flows, s->held, (unsigned long long)s->resent,
                  (unsigned long long)s->out_of_order, (unsigned long long)s->bogus_acks,
                  (unsigned long long)s->memory_full, (unsigned long long)t->lost);
    (void)fclose(f);
}

static int listen_on(uint16_t port, bool udp)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    int fd = socket(AF_INET, (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || (!udp && listen(fd, 128) < 0))
        die("listen");
    return fd;
}

static void add_publish(const char *arg)
{
    unsigned port, guest;
    char udp[5] = "";
    if (opt.n_publish == PORTS_MAX || sscanf(arg, "%u:%u%4s", &port, &guest, udp) < 2)
        exit(2);
    opt.publish[opt.n_publish].port = (uint16_t)port;
    opt.publish[opt.n_publish].guest = (uint16_t)guest;
    opt.publish[opt.n_publish++].udp = strcmp(udp, "/udp") == 0;
}

static void set_resolver(const char *arg)
{
    char ip[64];
    unsigned port;
    if (sscanf(arg, "%63[^:]:%u", ip, &port) != 2 || addr_parse(ip, &opt.dns.upstream[0].addr) < 0)
        exit(2);
    opt.dns.upstream[0].port = (uint16_t)port;
    opt.dns.n_upstreams = 1;
}

static void parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"publish", required_argument, NULL, 'p'},
        {"deny", required_argument, NULL, 'd'},
        {"max", required_argument, NULL, 'm'},
        {"copies", no_argument, NULL, 'c'},
        {"stats", required_argument, NULL, 's'},
        {"rules", required_argument, NULL, 'r'},
        {"resolver", required_argument, NULL, 'R'},
        {"strict", no_argument, NULL, 'S'},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "+", longs, NULL)) >= 0;) {
        if (c == 'p')
            add_publish(optarg);
        else if (c == 'd' && opt.n_deny < PORTS_MAX)
            opt.deny[opt.n_deny++] = (uint16_t)strtoul(optarg, NULL, 10);
        else if (c == 'm')
            opt.cfg.max_tcp = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'c')
            opt.cfg.copies = true;
        else if (c == 's')
            opt.stats = optarg;
        else if (c == 'r')
            opt.rules = optarg;
        else if (c == 'R')
            set_resolver(optarg);
        else if (c == 'S')
            opt.strict = true;
        else
            exit(2);
    }
    if (optind == argc)
        exit(2);
    (void)addr_parse("10.0.2.15", &opt.cfg.guest4);
    (void)addr_parse("10.0.2.2", &opt.cfg.gateway4);
    (void)addr_parse("fd00:2::15", &opt.cfg.guest6);
    (void)addr_parse("fd00:2::2", &opt.cfg.gateway6);
    memcpy(opt.cfg.guest_mac, "\x02\0\0\0\0\x0f", 6);
    memcpy(opt.cfg.gateway_mac, "\x02\0\0\0\0\x01", 6);
}

/* With rules, all of it; without, the stack alone. */
static struct net *start_net(struct link *l, struct gate **gate)
{
    struct net *net;
    struct policy policy;
    struct err e = {0};
    struct gate_config c = {.net = opt.cfg, .dns = opt.dns, .strict = opt.strict};
    if (!opt.rules) {
        if (net_new(&net, &loop, l, &opt.cfg, &hooks, NULL) < 0)
            die("stack");
        return net;
    }
    policy_init(&policy);
    if (policy_add_rules(&policy, opt.rules, &e) < 0) {
        (void)fprintf(stderr, "%s\n", e.msg);
        exit(2);
    }
    if (gate_new(gate, &loop, l, &c, &policy, on_told, NULL) < 0)
        die("gate");
    return gate_net(*gate);
}

int main(int argc, char **argv)
{
    static struct tap tap;
    struct gate *gate = NULL;
    struct net *net;
    int pair[2];

    parse(argc, argv);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        (void)close(pair[0]);
        run_inside(pair[1], argv + optind);
    }
    (void)close(pair[1]);
    tap.src = (struct loop_src){.fd = receive_fd(pair[0]), .fn = on_tap};
    tap.link =
        (struct link){.ops = &tap_ops, .caps = LINK_CSUM | LINK_TSO4 | LINK_TSO6 | LINK_ANY_SIZE};
    if (loop_init(&loop) < 0)
        die("loop");
    net = start_net(&tap.link, &gate);
    if (loop_add(&loop, &tap.src, EPOLLIN) < 0)
        die("tap");
    for (unsigned i = 0; i < opt.n_publish; i++)
        if (net_publish(net, opt.publish[i].udp ? PROTO_UDP : PROTO_TCP,
                        listen_on(opt.publish[i].port, opt.publish[i].udp),
                        opt.publish[i].guest) < 0)
            die("publish");
    struct loop_src done = {.fd = pair[0], .fn = on_child};
    if (loop_add(&loop, &done, EPOLLIN) < 0 || write(pair[0], "", 1) != 1)
        die("child");
    (void)loop_run(&loop);
    uint64_t until = now_ns() + LINGER_MS * 1000000ULL;
    while (net_stats(net)->tcp_flows > 0 && now_ns() < until) /* what the last packets ask for */
        (void)loop_turn(&loop, 10);
    if (opt.stats)
        write_stats(net, &tap);
    if (gate)
        gate_free(gate);
    else
        net_free(net);
    (void)close(pair[0]);
    (void)waitpid(child, NULL, 0);
    return exit_code;
}
