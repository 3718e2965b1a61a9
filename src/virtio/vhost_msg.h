/* vhost-user on the wire: the messages, and a connection that reads and answers them.
 *
 * Only vhost_user.c and vhost_front.c use this. Reading never blocks and never goes past the end of
 * a message, so that descriptors belong to the message they came with.
 */
#pragma once

#include <linux/vhost_types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "virtio/guest_mem.h"

enum {
    FDS_MAX = GUEST_REGIONS_MAX,
    CONFIG_MAX = 256,
    PAYLOAD_MAX = 12 + CONFIG_MAX, /* the longest is a GET_CONFIG; a full memory table is 264 */
};

/* The feature bit that announces protocol features, and the one protocol feature that we know. */
#define F_PROTOCOL_FEATURES (1ULL << 30)
#define PROTOCOL_F_CONFIG (1ULL << 9)

/* Header flags. */
enum { F_VERSION_MASK = 3, F_VERSION = 1, F_REPLY = 4, F_NEED_REPLY = 8 };

enum request {
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    RESET_OWNER = 4,
    SET_MEM_TABLE = 5,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    GET_VRING_BASE = 11,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15,
    SET_PROTOCOL_FEATURES = 16,
    GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18,
    GET_CONFIG = 24,
    SET_CONFIG = 25,
    RESET_DEVICE = 34,
};

struct header {
    uint32_t request, flags, size;
};

struct mem_region {
    uint64_t gpa, size, user_addr, mmap_offset;
};

struct mem_table {
    uint32_t n, padding;
    struct mem_region region[GUEST_REGIONS_MAX];
};

struct config_msg {
    uint32_t offset, size, flags;
    uint8_t data[CONFIG_MAX];
};

struct vring_addr {
    uint32_t index, flags;
    uint64_t desc, used, avail, log;
};

struct message {
    struct header h;
    union {
        uint8_t bytes[PAYLOAD_MAX];
        uint64_t u64;
        struct vhost_vring_state state;
        struct vring_addr addr;
        struct mem_table mem;
        struct config_msg config;
    } p;
};
_Static_assert(offsetof(struct message, p) == 16, "payload is aligned, so not next to the header");

struct vhost_conn {
    int fd;
    bool front;         /* we send requests: what arrives are replies */
    struct message msg; /* valid after vhost_conn_read() returned 1 */
    size_t have;        /* bytes of it (header and payload) read so far */
    int fds[FDS_MAX];   /* that came with it; a handler takes one by leaving -1 there */
    unsigned n_fds;
};

/* Continues reading the current message. 1: it is complete; 0: no more data for now; -1: the
 * connection has to end, *ret_why says why. */
int vhost_conn_read(struct vhost_conn *c, const char **ret_why);
/* Closes the descriptors that were not taken. */
void vhost_conn_drop_fds(struct vhost_conn *c);
/* Done with this message. */
void vhost_conn_next(struct vhost_conn *c);
/* Sends the message back with `size` bytes of payload. NULL, or why the connection has to end: a
 * front end that does not read its replies is not waited for. */
const char *vhost_conn_reply(struct vhost_conn *c, uint32_t size);
