/* The session server: accepts streams, runs commands, reaps children.
 *
 * It does not depend on being PID 1 or on vsock: it is given a listening socket. One thread, one
 * event loop. All descriptors of sessions are edge-triggered: a handler notes what has become
 * possible and queues its session; the work is done when the queue is run, after the batch of
 * events. So no session is freed while events for it are being delivered, no descriptor is ever
 * re-armed, and sessions take turns.
 */
#pragma once

#include "agent/oom.h"
#include "agent/request.h"
#include "agent/users.h"
#include "proto/proto.h"
#include "util/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    SERVER_SESSIONS_MAX = 512,
    SERVER_DRAINS_MAX = 256,
    SERVER_BULK_SHARE = 16, /* the fraction of memory (1/16) that large pipes may take */
    SERVER_FRAMES = 4,      /* output frames read at once */
    SERVER_SCRATCH = SERVER_FRAMES * (PROTO_HDR_LEN + PROTO_DATA_MAX),
};

struct session;
struct server;

/* Functions that only a pod's PID 1 has (container.h); both NULL elsewhere. */
struct server_containers {
    void (*start)(struct session *s, const struct proto_frame *f);
    void (*gone)(struct session *s);
};

struct server {
    struct loop loop;
    const struct config *cfg;
    struct user_cache users;
    struct loop_src listener, sigchld;
    struct oom oom;
    int dev_null;
    struct session *sessions;
    size_t nsessions;
    struct session *ready, **ready_tail; /* sessions with work to do */
    size_t ndrains;
    size_t bulk_left; /* bytes by which pipes may still be enlarged */
    bool yielded;     /* in this turn */
    bool stopping;    /* no new commands */
    struct server_containers containers;
    pid_t init; /* of the image (init.h); 0 = none, or it has ended */
    void (*on_init_end)(struct server *srv, int status);
    void (*on_childless)(struct server *srv); /* called when the last child is gone; may be NULL */
    uint8_t *scratch;                         /* SERVER_SCRATCH bytes, valid within one call only */
};

/* Blocks every signal for good and takes SIGCHLD through a descriptor. */
int server_init(struct server *srv, const struct config *cfg);
/* Takes ownership of a listening, non-blocking socket. */
int server_listen(struct server *srv, int fd);
/* One turn of the loop and of the ready queue. */
int server_turn(struct server *srv, int timeout_ms);
/* Reaps children that have exited. */
void server_reap(struct server *srv);
/* Accepts no new streams; new commands on open ones are refused. */
void server_stop(struct server *srv);

/* For sessions: queue for the next run. */
void server_wake(struct server *srv, struct session *s);
/* For sessions: reads and discards what a background process still writes to this pipe, so that it
 * neither blocks nor gets SIGPIPE. Takes the descriptor. */
void server_drain(struct server *srv, int fd);
