#include "agent/proxy.h"

#include "util/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK = 64 * 1024 };

static int connect_to(uint16_t port)
{
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    AUTO_CLOSE int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (a >= 0 && connect(a, (struct sockaddr *)&v4, sizeof(v4)) == 0)
        return steal_fd(&a);
    AUTO_CLOSE int b = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (b >= 0 && connect(b, (struct sockaddr *)&v6, sizeof(v6)) == 0)
        return steal_fd(&b);
    return -1;
}

static void copy(int from, int to)
{
    static char buf[CHUNK];
    ssize_t n, k;
    while ((n = read(from, buf, sizeof(buf))) > 0)
        for (ssize_t done = 0; done < n; done += k)
            if ((k = write(to, buf + done, (size_t)(n - done))) <= 0)
                return;
}

/* One process for each direction: neither waits for the other. */
static void __attribute__((noreturn)) proxy_main(uint16_t port)
{
    int sock = connect_to(port);
    pid_t up = sock < 0 ? -1 : fork();
    if (up == 0) {
        copy(0, sock);
        (void)shutdown(sock, SHUT_WR);
        _exit(0);
    }
    if (up < 0)
        _exit(1);
    (void)close(0);
    copy(sock, 1);
    (void)kill(up, SIGKILL);
    _exit(0);
}

pid_t proxy_start(uint32_t port, const int fd[3])
{
    if (port == 0 || port > UINT16_MAX)
        return -EINVAL;
    pid_t pid = fork();
    if (pid != 0)
        return pid < 0 ? -errno : pid;
    (void)setsid();
    for (int i = 0; i < 3; i++)
        (void)dup2(fd[i], i);
    (void)syscall(SYS_close_range, 3, ~0U, 0);
    proxy_main((uint16_t)port);
}
