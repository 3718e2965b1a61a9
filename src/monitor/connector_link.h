/* The monitor's end of the socket to the connector (launch/connector.h). Nothing here waits. */
#ifndef MSB_MONITOR_CONNECTOR_LINK_H
#define MSB_MONITOR_CONNECTOR_LINK_H

#include <stdint.h>

/* What they say to each other, in packets. */
struct connector_request {
    uint32_t cookie, index;
};
struct connector_reply {
    uint32_t cookie;
    int32_t code; /* 0, and a descriptor comes with it; or -errno */
};

/* Asks for a connection to the socket with that index. -EAGAIN: it has too much to do. */
int connector_ask(int fd, uint32_t cookie, uint32_t index);
/* The next answer: 1, with the cookie and a connected, non-blocking socket or -errno; 0: none is
 * there now; -EPIPE: the process has died. */
int connector_answer(int fd, uint32_t *cookie, int *ret);

#endif
