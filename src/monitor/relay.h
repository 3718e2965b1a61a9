/* The relay between clients and the agent: accepts on agent.sock, answers requests, relays
 * sessions.
 *
 * A session is one client connection tied to one vsock stream. Frames pass through byte for byte;
 * the relay parses only what it must: where frames begin, what output to log, when the command
 * exits, when the client detaches. Buffers are bounded, and a full one stops only its source.
 *
 * Invariants
 *   1. A session's stream lives as long as its command: if a client disconnects without DETACH, the
 *      stream is reset and the agent kills the command, unless it is in the background
 *      (F_BACKGROUND, or detached before), where it then stays.
 *   2. Bytes from the guest are copied out of its memory once, and parsed in the copy.
 *   3. A client costs at most CLIENT_IN_MAX + CLIENT_OUT_MAX bytes (plus one EXEC message while it
 *      is read).
 *   4. A session counts until its client has received all of its output, or has disconnected.
 *   5. A request that is refused with FAIL_STATE has not reached the agent: it may be repeated. The
 *      reason is in its text: the sandbox is going down, or its guest turned the stream away.
 *   6. A command that has written more than output_max is ended, with the write that went beyond it.
 *   7. There are no more sessions than the guest's memory bears: one for each 2 MiB of it. One whose
 *      client does not read takes most of a MiB there: pipes, the agent's buffer, a small program.
 */
#pragma once

#include "monitor/exec_log.h"
#include "proto/proto.h"
#include "store/background.h"
#include "util/list.h"
#include "util/loop.h"
#include "virtio/device.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    RELAY_CLIENTS_MAX = 1024,
    RELAY_SESSIONS_MIN = 16,  /* of the smallest guest */
    RELAY_SESSIONS_MAX = 512, /* as many as the agent takes */
    RELAY_HELLO_MS = 10000,   /* time for a client to make its request */
    RELAY_LEASH_MS = 200,     /* for other commands, once the leash's holder is gone */
};

/* What the relay asks its owner to do. */
struct relay_events {
    /* TOUCH; 0 = as it was. Negative: refused. */
    int (*touched)(void *ctx, uint64_t life_ms, struct err *e);
    void (*sessions_changed)(void *ctx, unsigned n); /* a session began or ended */
    void (*stop)(void *ctx, uint64_t grace_ms);      /* STOP */
    bool (*ping)(void *ctx, uint64_t cookie);        /* ask the agent; false: it cannot be asked */
    char *(*info)(void *ctx);                        /* INFO: counters as JSON; malloc'd, or NULL */
    /* Any other request: false if it is unknown, else the reply is in `out`. *fd came with it, or
     * is -1; a handler that takes it leaves -1. Optional. */
    bool (*request)(void *ctx, const struct proto_frame *f, int *fd, struct buf *out);
    /* A background command was started, detached from, or has ended. Optional. */
    void (*background)(void *ctx, const struct background_command *c);
};

struct relay {
    struct loop *loop;
    struct virtio_dev *vsock;
    struct exec_log *log;
    const struct relay_events *ev;
    void *ctx;
    struct loop_src listener;
    struct node clients;
    unsigned n_clients;
    unsigned n_sessions;
    uint64_t n_execs; /* commands started, so far */
    uint32_t last_id;
    uint64_t last_cookie;
    uint64_t memory_mib;
    uint64_t output_max; /* UINT64_MAX = no limit; the owner may lower it */
    uint64_t hello_ns;   /* RELAY_HELLO_MS */
    struct loop_timer watch;
    bool listening; /* clients are accepted */
    bool open;      /* sessions are accepted */
};

/* listen_fd is non-blocking and stays the caller's. Clients wait until relay_open(). */
void relay_init(struct relay *r, struct loop *l, struct virtio_dev *vsock, struct exec_log *log,
                int listen_fd, uint64_t memory_mib, const struct relay_events *ev, void *ctx);
/* How many commands, detached ones included, and streams of files a guest may have at once. */
unsigned relay_sessions_max(uint64_t memory_mib);
void relay_open(struct relay *r);
/* Accepts no new sessions: the sandbox is going down. */
void relay_refuse(struct relay *r);
/* The last call: clients that have made no request yet, or whose session has not reached the agent,
 * are refused with FAIL_STATE. */
void relay_end(struct relay *r);
/* The agent answered a ping. */
void relay_pong(struct relay *r, uint64_t cookie);
