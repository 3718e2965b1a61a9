/* One request to a running monitor and one reply: the small messages on agent.sock.
 *
 * dirfd is the sandbox's directory. Each opens a connection, and gives up after REQUEST_TIMEOUT_MS
 * with -ETIMEDOUT; -ECONNREFUSED or -ENOENT if there is no monitor.
 */
#pragma once

#include "proto/proto.h"
#include "util/cleanup.h"

#include <stdbool.h>
#include <stdint.h>

enum { REQUEST_TIMEOUT_MS = 5000, REQUEST_HASTY_MS = 200 };

struct request {
    struct buf out, in;
    struct proto_writer w;     /* of the request: put its fields here */
    struct proto_frame answer; /* its bytes are in `in` */
    bool patient;              /* the reply may take any time */
    bool hasty;                /* it may only take a moment */
};
#define AUTO_REQUEST CLEANUP(request_free)

/* Puts HELLO, and the beginning of a request of that type. */
void request_begin(struct request *q, uint16_t type);
/* Sends it, with a descriptor unless that is -1, and reads the reply. */
int request_end(struct request *q, int dirfd, int with_fd);
void request_free(struct request *q);

int request_stop(int dirfd, uint64_t grace_ms);
int request_ping(int dirfd); /* goes through to the agent in the guest */
/* Makes the agent update what request_info() gets from it; shortly, or not at all. */
void request_news(int dirfd);
int request_touch(int dirfd);
int request_sessions(int dirfd, unsigned *ret); /* commands running now */
/* The monitor's counters, as JSON text; "" if they do not fit. hasty: gives up sooner, for callers
 * that can do without them. */
int request_info(int dirfd, bool hasty, char *to, size_t size);
/* Waits, however long it takes, until that background command has ended (id 0: until the sandbox
 * has). 0: *code is its exit code, or -1 if that is unknown; -ESRCH: there is no such command. */
int request_wait(int dirfd, uint32_t id, int *code);
