/* Frames from the guest, taken apart.
 *
 * The first PACKET_HEAD_MAX bytes are copied out of guest memory once; every header must lie in
 * that copy, and everything is decided on the copy. Payload stays where it is. Lengths in the
 * headers are checked against each other and against the frame: a packet that parses has its
 * transport header and payload inside the frame.
 *
 * Checksums are not verified: there is no wire between guest and host that could corrupt a frame.
 * Options of IPv4 and IPv6 extension headers are skipped over (they end here, nothing forwards
 * them); source routes are refused.
 */
#pragma once

#include "util/addr.h"
#include "virtio/link.h"

enum { PACKET_HEAD_MAX = 256, PACKET_EXT_MAX = 8 };

enum {
    ETHERTYPE_V4 = 0x0800,
    ETHERTYPE_ARP_ = 0x0806,
    ETHERTYPE_V6 = 0x86dd,
};
enum {
    PROTO_ICMP = 1,
    PROTO_TCP = 6,
    PROTO_UDP = 17,
    PROTO_ICMP6 = 58,
};
enum {
    SEG_FIN = 1,
    SEG_SYN = 2,
    SEG_RST = 4,
    SEG_PSH = 8,
    SEG_ACK = 16,
    SEG_URG = 32,
};

/* Why a frame was dropped; also the index of its counter. */
enum packet_fault {
    PACKET_OK,
    PACKET_SHORT,    /* a header or a claimed length goes beyond the end */
    PACKET_BAD,      /* a field has an invalid value */
    PACKET_TYPE,     /* an unsupported protocol */
    PACKET_SPOOFED,  /* not from the guest's own address */
    PACKET_FRAGMENT, /* fragments that do not follow each other, or too many at once */
    PACKET_FAULTS,
};

struct packet_tcp {
    uint32_t seq, ack;
    uint8_t flags;
    uint16_t window;
    uint16_t mss;  /* 0: not given */
    int8_t wscale; /* -1: not given */
};

struct packet {
    const struct link_offload *off;
    const struct iovec *iov; /* the frame, in guest memory */
    unsigned n_iov;
    size_t len;

    uint8_t head[PACKET_HEAD_MAX];
    size_t head_len;

    uint16_t ethertype;
    uint8_t dst_mac[6], src_mac[6];
    struct net_addr src, dst;
    uint8_t proto, ttl;
    size_t l3, l4; /* where the network and the transport header start */
    size_t l4_len; /* bytes from l4 to the end of the packet */

    bool fragment, more;
    uint32_t frag_id;
    uint32_t frag_off;

    uint16_t sport, dport;
    struct packet_tcp tcp;
    size_t payload, payload_len; /* of UDP and TCP */
};

/* Parses Ethernet, and IP if it is IP. Leaves transport headers alone if it is a fragment. */
enum packet_fault packet_parse(struct packet *p, const struct link_offload *off,
                               const struct iovec *iov, unsigned n, size_t len);

/* Copies from the frame, from the header copy or not; short at its end. */
size_t packet_read(const struct packet *p, size_t off, void *to, size_t n);

static inline uint16_t be16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}
static inline uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void put32(uint8_t *p, uint32_t v)
{
    put16(p, (uint16_t)(v >> 16));
    put16(p + 2, (uint16_t)v);
}
