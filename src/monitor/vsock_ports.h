/* Host ports that programs in the guest reach over vsock; each is a Unix socket on the host.
 *
 * A guest's connect succeeds once the connection on the host has (connector_link.h). Then bytes
 * move both ways with back-pressure: what the host's server does not take counts against the
 * guest's credit; what the guest does not take stays in the host's socket, except for one chunk.
 * Nothing blocks, and each connection moves one chunk per turn, so none can hold up others or the
 * monitor.
 *
 * All of it runs on the loop of the vsock device.
 */
#pragma once

#include "spec/vsock.h"
#include "util/list.h"
#include "util/loop.h"
#include "virtio/vsock.h"

enum {
    VSOCK_PORTS_CONNS_MAX = 256, /* of all ports together */
    VSOCK_PORTS_CHUNK = 64 * 1024,
};
/* They never use up what other streams may buffer. */
_Static_assert((size_t)VSOCK_PORTS_CONNS_MAX *VSOCK_CREDIT * 2 <= VSOCK_HELD_MAX,
               "room for other streams");

struct vsock_conn;

struct vsock_port {
    struct vsock_ports *owner;
    uint32_t index; /* in the list of the spec */
};

struct vsock_ports {
    struct loop *loop;
    struct loop_src connector;
    struct vsock_port port[SPEC_VSOCK_MAX];
    struct vsock_conn *conn[VSOCK_PORTS_CONNS_MAX];
    struct node ready; /* connections with something to do */
    struct loop_timer work;
    unsigned n_conns;
    uint64_t refused; /* because of the limit, or by the host */
    void (*lost)(void *ctx);
    void *ctx;
    uint8_t chunk[VSOCK_PORTS_CHUNK];
};

/* `connector` stays the caller's to close. lost: it has died, and nothing can be connected any
 * more. */
int vsock_ports_init(struct vsock_ports *p, struct loop *l, struct virtio_dev *vsock,
                     const struct spec_vsocks *list, int connector, void (*lost)(void *ctx),
                     void *ctx);
/* Ends all connections. Only tests need it: those of a monitor end when it exits. */
void vsock_ports_end(struct vsock_ports *p);
