/* The parts of AF_VSOCK that we use, so that the build needs no kernel headers. */
#pragma once

#include <stdint.h>

enum {
    VSOCK_FAMILY = 40, /* AF_VSOCK */
    VSOCK_CID_HOST = 2,
};
#define VSOCK_CID_ANY UINT32_MAX

struct vsock_addr { /* struct sockaddr_vm */
    uint16_t family;
    uint16_t reserved;
    uint32_t port;
    uint32_t cid;
    uint8_t flags;
    uint8_t zero[3];
};
_Static_assert(sizeof(struct vsock_addr) == 16, "as in the kernel");

/* A blocking socket, connected to the host or listening in the guest. A descriptor or -errno. */
int vsock_connect(uint32_t port);
int vsock_listen(uint32_t port);
/* The next stream of the host's, which does not block; -1: there is none. Programs in the guest can
 * connect to it, too (CID 1): these streams are closed. */
int vsock_accept(int listener);
