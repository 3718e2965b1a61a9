/* Helpers with which tests of session_run play the agent.
 *
 * session_run owns fd 0, 1 and 2 and handles signals, so it runs in a separate process; the test is
 * the agent at the other end of a socketpair, and holds the other ends of its stdio. session_run's
 * result is returned through shared memory.
 */
#pragma once

#include "client/session.h"
#include "proto/proto.h"
#include "util/buf.h"

#include <stdbool.h>
#include <sys/types.h>

enum { NO_FD = -1, CLOSED_FD = -2 }; /* NO_FD: /dev/null */

struct outcome {
    int ret;
    struct session_result res;
    struct err e;
    volatile bool returned;
    volatile bool gone; /* the process is about to end, and with it all it has open */
    /* with a shell between (see test_session_tty.c) */
    volatile pid_t client;
    volatile bool stopped, resume;
    volatile int client_status;
};

struct peer {
    int sock;
    pid_t pid;
    struct outcome *o; /* shared */
    struct buf in;
};

struct client_setup {
    int fd[3];
    void (*before)(struct outcome *o); /* in the client, before session_run */
    unsigned linger_ms;                /* how long the process lives on after session_run */
};

extern const struct client_setup quiet; /* with nothing but /dev/null */

void request_init(struct session_request *req, const char *arg0);
void request_free(struct session_request *req);

/* Starts the client; afterwards the test's copies of setup->fd are closed. */
void peer_start(struct peer *p, const struct session_request *req,
                const struct client_setup *setup);
/* The same for `true`, which has this long. */
void peer_run(struct peer *p, const struct client_setup *setup, uint64_t timeout_ms);
/* Waits for session_run to return; fails the test when it takes longer than 20 s. */
void peer_end(struct peer *p);
/* HELLO and EXEC have come; *exec is a malloc'd copy of EXEC's payload. */
void peer_expect_exec(struct peer *p, struct proto_frame *exec);
/* The next frame, in f until the next call; false at the end of the stream. */
bool peer_next(struct peer *p, struct proto_frame *f);
void peer_send(struct peer *p, uint16_t type, const void *data, size_t n);
void peer_send_num(struct peer *p, uint16_t type, uint16_t tag, uint64_t v);
void peer_send_raw(struct peer *p, const void *data, size_t n);
void peer_ack(struct peer *p, uint64_t bytes);
void peer_fail(struct peer *p, uint32_t kind, const char *text);
/* EXEC expected, STARTED sent. */
void peer_begin(struct peer *p);
void peer_exit(struct peer *p, uint32_t code);
/* Reads fd to its end. */
void read_all(int fd, struct buf *to);
void pause_ms(unsigned ms);
