#include "oci/forward.h"

#include "client/session.h"
#include "jail/jail.h"
#include "util/cleanup.h"
#include "util/process.h"
#include "util/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKLOG = 64, AT_ONCE = 128, V4 = 0, V6 = 1, PASS = 1 };

/* --- the program ----------------------------------------------------------------------------- */

static int bpf(enum bpf_cmd cmd, union bpf_attr *a)
{
    int r = (int)syscall(SYS_bpf, cmd, a, sizeof(*a));
    return r < 0 ? -errno : r;
}

#define INSN(op, d, s, o, i)                                                      \
    (struct bpf_insn)                                                             \
    {                                                                             \
        .code = (op), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (int)(i) \
    }
#define LOAD(d, field) \
    INSN(BPF_LDX | BPF_MEM | BPF_W, d, BPF_REG_6, offsetof(struct bpf_sk_lookup, field), 0)
#define UNLESS(d, value, skip) INSN(BPF_JMP | BPF_JNE | BPF_K, d, 0, skip, value)
#define MOVE(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define SET(d, value) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, value)
#define CALL(function) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, function)

/* TCP to 127.0.0.0/8 goes to the socket with key V4 in the map, to ::1 to the one with V6; all else
 * is looked up as usual. */
static int load_program(int map)
{
    const struct bpf_insn code[] = {
        MOVE(BPF_REG_6, BPF_REG_1),
        SET(BPF_REG_7, V4),
        LOAD(BPF_REG_2, protocol),
        UNLESS(BPF_REG_2, IPPROTO_TCP, 29),
        LOAD(BPF_REG_2, family),
        UNLESS(BPF_REG_2, AF_INET, 4),
        LOAD(BPF_REG_2, local_ip4),
        INSN(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_2, 0, 0, htonl(0xff000000)),
        UNLESS(BPF_REG_2, htonl(0x7f000000), 24),
        INSN(BPF_JMP | BPF_JA, 0, 0, 9, 0),
        LOAD(BPF_REG_2, local_ip6[0]), /* of another family */
        UNLESS(BPF_REG_2, 0, 21),
        LOAD(BPF_REG_2, local_ip6[1]),
        UNLESS(BPF_REG_2, 0, 19),
        LOAD(BPF_REG_2, local_ip6[2]),
        UNLESS(BPF_REG_2, 0, 17),
        LOAD(BPF_REG_2, local_ip6[3]),
        UNLESS(BPF_REG_2, htonl(1), 15),
        SET(BPF_REG_7, V6),
        INSN(BPF_STX | BPF_MEM | BPF_W, BPF_REG_10, BPF_REG_7, -4, 0), /* found: */
        MOVE(BPF_REG_2, BPF_REG_10),
        INSN(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -4),
        INSN(BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map),
        INSN(0, 0, 0, 0, 0), /* its second half */
        CALL(BPF_FUNC_map_lookup_elem),
        INSN(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 7, 0),
        MOVE(BPF_REG_7, BPF_REG_0),
        MOVE(BPF_REG_1, BPF_REG_6),
        MOVE(BPF_REG_2, BPF_REG_7),
        SET(BPF_REG_3, 0),
        CALL(BPF_FUNC_sk_assign),
        MOVE(BPF_REG_1, BPF_REG_7),
        CALL(BPF_FUNC_sk_release),
        SET(BPF_REG_0, PASS),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr a = {.prog_type = BPF_PROG_TYPE_SK_LOOKUP,
                        .insn_cnt = ARRAY_LEN(code),
                        .insns = (uint64_t)(uintptr_t)code,
                        .license = (uint64_t)(uintptr_t) "Apache-2.0",
                        .expected_attach_type = BPF_SK_LOOKUP};
    return bpf(BPF_PROG_LOAD, &a);
}

static int put_socket(int map, uint32_t key, int sock)
{
    uint64_t value = (uint64_t)sock;
    union bpf_attr a = {.map_fd = (uint32_t)map,
                        .key = (uint64_t)(uintptr_t)&key,
                        .value = (uint64_t)(uintptr_t)&value};
    return bpf(BPF_MAP_UPDATE_ELEM, &a);
}

/* A link: the program is in force until it is closed. */
static int attract(const int sock[2])
{
    union bpf_attr m = {.map_type = BPF_MAP_TYPE_SOCKMAP,
                        .key_size = sizeof(uint32_t),
                        .value_size = sizeof(uint64_t),
                        .max_entries = 2};
    AUTO_CLOSE int map = bpf(BPF_MAP_CREATE, &m);
    AUTO_CLOSE int ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int r = map < 0 ? map : ns < 0 ? -errno : put_socket(map, V4, sock[V4]);
    if (r < 0)
        return r;
    if (sock[V6] >= 0)
        (void)put_socket(map, V6, sock[V6]);
    AUTO_CLOSE int program = load_program(map);
    union bpf_attr l = {.link_create = {.prog_fd = (uint32_t)program,
                                        .target_fd = (uint32_t)ns,
                                        .attach_type = BPF_SK_LOOKUP}};
    return program < 0 ? program : bpf(BPF_LINK_CREATE, &l);
}

/* --- connections ----------------------------------------------------------------------------- */

static int listen_on(int family)
{
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr_in v4 = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool six = family == AF_INET6;
    int on = 1;
    AUTO_CLOSE int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* lo may not be up yet. */
    if (fd < 0 ||
        setsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_FREEBIND : IP_FREEBIND, &on,
                   sizeof(on)) < 0 ||
        bind(fd, six ? (const void *)&v6 : (const void *)&v4, six ? sizeof(v6) : sizeof(v4)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    return steal_fd(&fd);
}

static void __attribute__((noreturn)) carry(int agent, int conn)
{
    struct sockaddr_in6 at = {0}; /* the port is at the same offset in both */
    socklen_t len = sizeof(at);
    struct session_result res;
    struct err e = {0};
    if (getsockname(conn, (struct sockaddr *)&at, &len) < 0)
        _exit(1);
    const struct session_request req = {.port = ntohs(at.sin6_port)};
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", agent);
    int sock = connect_at(path);
    if (sock < 0 || dup2(conn, 0) < 0 || dup2(conn, 1) < 0)
        _exit(1);
    (void)close(conn);
    (void)session_run(sock, &req, &res, &e);
    _exit(0);
}

static void accept_one(int listener, int agent, unsigned *n)
{
    int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    while (*n > 0 && waitpid(-1, NULL, *n < AT_ONCE ? WNOHANG : 0) > 0)
        --*n;
    pid_t pid = conn < 0 ? -1 : fork();
    if (pid == 0)
        carry(agent, conn);
    *n += pid > 0;
    close_fd(&conn);
}

static void __attribute__((noreturn)) forward_main(int dirfd, int monitor)
{
    struct err e = {0};
    unsigned n = 0;
    int agent = openat(dirfd, "run/agent.sock", O_PATH | O_CLOEXEC | O_NOFOLLOW);
    const int keep[] = {agent, monitor};
    (void)setsid();
    /* A caller waits for the end of its standard output. */
    if (agent < 0 || process_close_stdio() < 0)
        _exit(1);
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
    process_forget_caller("forward", "");
    const int sock[2] = {[V4] = listen_on(AF_INET), [V6] = listen_on(AF_INET6)};
    if (sock[V4] < 0 || attract(sock) < 0 || jail_keep_caps(0, &e) < 0)
        _exit(1);
    struct pollfd p[] = {{.fd = monitor, .events = POLLIN},
                         {.fd = sock[V4], .events = POLLIN},
                         {.fd = sock[V6], .events = POLLIN}};
    while (poll(p, ARRAY_LEN(p), -1) >= 0 || errno == EINTR) {
        if (p[0].revents)
            break;
        for (int i = 1; i < 3; i++)
            if (p[i].revents & POLLIN)
                accept_one(p[i].fd, agent, &n);
    }
    _exit(0);
}

void forward_start(int dirfd, int monitor)
{
    if (fork() == 0)
        forward_main(dirfd, monitor);
}
