/* Stands for a monitor: starts msb-intercept and hands it every connection to a port, for tests/bench/intercept.py.
 *
 *     intercept_feed PROGRAM DIRECTORY ROOTS.pem HOST SERVER_PORT
 *
 * DIRECTORY is for its certificate authority. Prints the port and the interceptor's process ID.
 */
#include "intercept/config.h"
#include "intercept/link.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/parse.h"

#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOTS_MAX = 1 << 20, BACKLOG = 64, SOCK = 3 };

static pid_t start(char *program, int *link)
{
    char mode[] = "reduced", most[] = "64";
    char *argv[] = {program, mode, most, NULL}, *env[] = {NULL};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        err(1, "socketpair");
    pid_t pid = fork();
    if (pid == 0) {
        if (pair[1] == SOCK ? fcntl(SOCK, F_SETFD, 0) < 0 : dup2(pair[1], SOCK) < 0)
            err(1, "dup2");
        execve(program, argv, env);
        err(1, "%s", program);
    }
    (void)close(pair[1]);
    *link = pair[0];
    return pid;
}

static void tell(int link, const char *dir, const char *roots, const char *host)
{
    struct subst_host h = {0};
    struct link_flow f = {.kind = LINK_CHANGE};
    struct config_writer w;
    struct config_reply reply;
    int pair[2];
    (void)snprintf(h.name, sizeof(h.name), "%s", host);
    if (config_begin(&w, 1 << 20) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        err(1, "config");
    config_secret(&w, "KEY", "msb_placeholder", "the-value-that-takes-its-place");
    config_host(&w, &h);
    config_roots(&w, NULL, roots);
    config_ca(&w, dir, NULL);
    if (link_send(link, &f, sizeof(f), pair[1], -1) < 0 || config_send(&w, pair[0]) < 0)
        errx(1, "the interceptor does not listen");
    (void)close(pair[1]);
    if (recv(pair[0], &reply, sizeof(reply), 0) != (ssize_t)sizeof(reply) || reply.code)
        errx(1, "the interceptor is not ready");
    config_end(&w);
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void pass_on(int link, int fd, const char *host, uint16_t port)
{
    struct link_flow f = {.kind = LINK_FLOW, .id.peer.port = 443};
    struct sockaddr_in to = loopback(port);
    int one = 1;
    AUTO_CLOSE int guest = fd, server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(f.host, sizeof(f.host), "%s", host);
    if (connect(server, (struct sockaddr *)&to, sizeof(to)) < 0)
        err(1, "connect");
    (void)setsockopt(guest, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (fcntl(guest, F_SETFL, O_NONBLOCK) < 0 || fcntl(server, F_SETFL, O_NONBLOCK) < 0 ||
        link_send(link, &f, sizeof(f), guest, server) < 0)
        errx(1, "the interceptor takes no connection");
}

int main(int argc, char **argv)
{
    AUTO_FREE char *roots = NULL;
    uint64_t port = 0;
    size_t n;
    int link = -1;
    if (argc != 6 || parse_u64(argv[5], &port) < 0 ||
        file_read_at(AT_FDCWD, argv[3], ROOTS_MAX, &roots, &n) < 0)
        errx(2, "usage: intercept_feed PROGRAM DIRECTORY ROOTS.pem HOST SERVER_PORT");
    pid_t pid = start(argv[1], &link);
    tell(link, argv[2], roots, argv[4]);
    struct sockaddr_in a = loopback(0);
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&a, len) < 0 || listen(listener, BACKLOG) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        err(1, "listen");
    (void)printf("%u %d\n", ntohs(a.sin_port), (int)pid);
    (void)fflush(stdout);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            pass_on(link, fd, argv[4], (uint16_t)port);
    }
}
