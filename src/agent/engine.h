/* The session engine: accepts streams, runs commands, reaps children.
 *
 * It knows nothing of being PID 1 or of vsock: it is given a listening socket. One thread, one
 * event loop. All descriptors of sessions are edge-triggered: a handler notes what became possible
 * and queues its session; the work is done when the queue is run, after the batch of events. So no
 * session is freed while events for it are being delivered, no descriptor is ever re-armed, and
 * sessions take turns.
 */
#ifndef MSB_AGENT_ENGINE_H
#define MSB_AGENT_ENGINE_H

#include "agent/request.h"
#include "agent/users.h"
#include "proto/proto.h"
#include "util/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    ENGINE_SESSIONS_MAX = 512,
    ENGINE_DRAINS_MAX = 256,
    ENGINE_FRAMES = 4, /* output frames read at once */
    ENGINE_SCRATCH = ENGINE_FRAMES * (PROTO_HDR_LEN + PROTO_DATA_MAX),
};

struct session;

struct engine {
    struct loop loop;
    const struct config *cfg;
    struct user_cache users;
    struct loop_src listener, sigchld;
    int dev_null;
    struct session *sessions; /* all of them */
    size_t nsessions;
    struct session *ready, **ready_tail; /* those with something to do */
    size_t ndrains;
    bool yielded;                           /* in this turn */
    bool stopping;                          /* no new commands */
    void (*on_childless)(struct engine *e); /* called when the last child is gone; may be NULL */
    uint8_t *scratch;                       /* ENGINE_SCRATCH bytes, used within one call only */
};

/* Blocks every signal for good and takes SIGCHLD through a descriptor. */
int engine_init(struct engine *e, const struct config *cfg);
/* Takes over a listening, non-blocking socket. */
int engine_listen(struct engine *e, int fd);
/* One turn of the loop and of the ready queue. */
int engine_turn(struct engine *e, int timeout_ms);
/* Reaps what has died. */
void engine_reap(struct engine *e);
/* No new streams; new commands on open ones are refused. */
void engine_stop(struct engine *e);

/* For sessions: queue for the next run. */
void engine_wake(struct engine *e, struct session *s);
/* For sessions: what a background process still writes into this pipe is read and dropped, so
 * that it neither blocks nor gets SIGPIPE. Takes the descriptor. */
void engine_drain(struct engine *e, int fd);

#endif
