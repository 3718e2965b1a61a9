/* One question to a running monitor, one answer: the small messages of agent.sock.
 *
 * dirfd is the sandbox's directory. Each opens a connection, and gives up after REQUEST_TIMEOUT_MS
 * with -ETIMEDOUT; -ECONNREFUSED or -ENOENT when there is no monitor.
 */
#ifndef MSB_CLIENT_REQUEST_H
#define MSB_CLIENT_REQUEST_H

#include "proto/proto.h"

#include <stdint.h>

enum {
    REQUEST_TIMEOUT_MS = 5000,
    /* A whole frame, and what is read beyond it. */
    REQUEST_ANSWER_MAX = PROTO_HDR_LEN + PROTO_DATA_MAX + 4096,
};

/* Sends frames (HELLO first), with a descriptor unless that is -1, and reads one frame into
 * *answer, which owns its bytes. */
int request_exchange(int dirfd, const struct buf *frames, int with_fd, struct buf *answer,
                     struct proto_frame *f);

int request_stop(int dirfd, uint64_t grace_ms);
int request_ping(int dirfd); /* goes through to the agent in the guest */
int request_touch(int dirfd);
int request_sessions(int dirfd, unsigned *ret); /* commands running now */

#endif
