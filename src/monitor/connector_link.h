/* The monitor's end of the socket to the connector (launch/connector.h), which connects to Unix
 * sockets of the host on its behalf, and the messages that the two exchange: SOCK_SEQPACKET, one
 * reply to each request. Nothing here blocks. */
#pragma once

#include <stdint.h>

struct connector_request {
    uint32_t cookie; /* returned with the reply */
    uint32_t index;  /* of the socket, in the spec's list */
};
struct connector_reply {
    uint32_t cookie;
    int32_t code; /* 0: the connected socket comes with it; or -errno */
};

/* Asks for a connection. -EAGAIN: too many requests are pending. */
int connector_ask(int fd, uint32_t cookie, uint32_t index);
/* Takes the next reply: 1, with its cookie and a connected, non-blocking socket or -errno; 0: there
 * is none yet; -EPIPE: the connector has died. */
int connector_answer(int fd, uint32_t *cookie, int *ret);
