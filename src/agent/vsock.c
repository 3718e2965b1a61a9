#include "agent/vsock.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 128 };

int vsock_connect(uint32_t port)
{
    AUTO_CLOSE int fd = socket(VSOCK_FAMILY, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct vsock_addr a = {.family = VSOCK_FAMILY, .port = port, .cid = VSOCK_CID_HOST};
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        return -errno;
    return steal_fd(&fd);
}

int vsock_listen(uint32_t port)
{
    AUTO_CLOSE int fd = socket(VSOCK_FAMILY, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct vsock_addr a = {.family = VSOCK_FAMILY, .port = port, .cid = VSOCK_CID_ANY};
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    return steal_fd(&fd);
}

/* In tests the listener is of another family. */
int vsock_accept(int listener)
{
    struct vsock_addr peer = {0};
    socklen_t len = sizeof(peer);
    AUTO_CLOSE int fd =
        accept4(listener, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    bool hosts = peer.family != VSOCK_FAMILY || peer.cid == VSOCK_CID_HOST;
    return fd >= 0 && hosts ? steal_fd(&fd) : -1;
}
