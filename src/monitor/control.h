/* The agent's control stream: the agent connects, is told what to set up, reports that it is ready,
 * and is told when to power off.
 *
 *     (called) ──HELLO──▶ greeted ──READY──▶ ready ──SEAL──▶ sealing ──SEALED──▶ ready ...
 *
 * Everything that it says is checked: it may be an impostor. */
#pragma once

#include "monitor/params.h"
#include "proto/proto.h"
#include "spec/spec.h"
#include "virtio/vsock.h"

#include <stdbool.h>

struct control_events {
    void (*ready)(void *ctx);
    void (*failed)(void *ctx, const char *why); /* printable */
    void (*pong)(void *ctx, uint64_t cookie);
    void (*sealed)(void *ctx);                /* the answer to control_seal() */
    void (*down)(void *ctx);                  /* everything is on disk: the power may be cut */
    void (*log)(void *ctx, const char *line); /* printable */
    void (*oom)(void *ctx, uint64_t kills);   /* processes killed for lack of memory, in all */
    void (*lost)(void *ctx);                  /* the stream ended */
};

struct control {
    const struct sandbox_spec *spec;
    const struct net_host *host;
    const char *upper_dev;     /* NULL: tmpfs */
    const char *host_cas;      /* PEM; NULL: none. Set after control_init */
    const struct net_tap *tap; /* NULL: none. The same */
    const struct control_events *ev;
    void *ctx;
    struct vsock_stream *stream;
    bool called;  /* the agent has connected, which it does once */
    bool greeted; /* HELLO seen, CONFIG sent */
    bool ready;
    bool sealing;    /* SEAL sent, not answered */
    uint64_t cpu_ns; /* the guest's CPU time, as last reported */
    struct buf in, out;
};

int control_init(struct control *c, struct virtio_dev *vsock, const struct sandbox_spec *spec,
                 const struct net_host *host, const char *upper_dev,
                 const struct control_events *ev, void *ctx);
/* These return false if the agent cannot be reached. */
bool control_seal(struct control *c);
bool control_ping(struct control *c, uint64_t cookie);
/* Passes on the F_ENV of a request, if any: variables of new commands (ENV of the protocol). */
void control_env(struct control *c, const struct proto_frame *request);
bool control_shutdown(struct control *c, uint64_t grace_ms);
