#include "client/frame_name.h"

#include "proto/proto.h"
#include "util/cleanup.h"

const char *frame_name(uint16_t type)
{
    static const char *const names[] = {
        [PROTO_HELLO] = "HELLO",
        [PROTO_FAIL] = "FAIL",
        [PROTO_PING] = "PING",
        [PROTO_PONG] = "PONG",
        [PROTO_EXEC] = "EXEC",
        [PROTO_STARTED] = "STARTED",
        [PROTO_STDIN] = "STDIN",
        [PROTO_STDIN_EOF] = "STDIN_EOF",
        [PROTO_STDIN_ACK] = "STDIN_ACK",
        [PROTO_STDOUT] = "STDOUT",
        [PROTO_STDERR] = "STDERR",
        [PROTO_SIGNAL] = "SIGNAL",
        [PROTO_RESIZE] = "RESIZE",
        [PROTO_EXIT] = "EXIT",
        [PROTO_DETACH] = "DETACH",
        [PROTO_ATTACH] = "ATTACH",
        [PROTO_WAIT] = "WAIT",
        [PROTO_TOUCH] = "TOUCH",
        [PROTO_STOP] = "STOP",
        [PROTO_OK] = "OK",
        [PROTO_INFO] = "INFO",
        [PROTO_NET_ASK] = "NET_ASK",
        [PROTO_NET_SET] = "NET_SET",
        [PROTO_NET_SHOW] = "NET_SHOW",
        [PROTO_PORT_ADD] = "PORT_ADD",
        [PROTO_PORT_RM] = "PORT_RM",
        [PROTO_SECRETS] = "SECRETS",
        [PROTO_LIMIT] = "LIMIT",
        [PROTO_TREE] = "TREE",
        [PROTO_CONTAINER] = "CONTAINER",
        [PROTO_IN] = "IN",
    };
    const char *name = type < ARRAY_LEN(names) ? names[type] : NULL;
    return name ? name : "unknown";
}
