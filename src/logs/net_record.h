/* The decisions of a sandbox's network, in net.log: written by the monitor, read by `msb net log`
 * and `msb audit`. One JSON object per line:
 *
 *   t          when; UTC, nanoseconds
 *   kind       flow      a flow was opened, or not
 *              question  a name was asked for
 *              shown     the first bytes of a flow named a host (TLS, HTTP)
 *              ended     an allowed flow has ended
 *              secret    a request in an intercepted connection was not sent
 *              missed    decisions that were not logged, because there were too many
 *   verdict    allow or deny; absent for ended and missed
 *   direction  egress or ingress; only for flows, like the next three
 *   proto      tcp, udp, icmp
 *   address    the peer's
 *   port       the peer's or, for ingress, the guest's
 *   name       of the peer, if known. From the guest: anything but printable ASCII is written as
 *              \xNN
 *   why        which rule decided, or how the flow ended
 *   to_host, to_guest, ms
 *              ended: bytes each way, and how long it lasted
 *   count      how many of this kind, up to t, since the last one; absent = 1
 *
 * The file is in run/, where a compromised monitor can write anything: readers only accept the
 * members above, of the types above, truncated and made safe to show.
 */
#pragma once

#include "logs/line.h"
#include "util/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    NET_RECORD_NAME_MAX = 1024, /* a name of 253 bytes, each as \xNN */
    NET_RECORD_WHY_MAX = 1024,
};

enum net_record_kind {
    NET_RECORD_FLOW,
    NET_RECORD_QUESTION,
    NET_RECORD_SHOWN,
    NET_RECORD_ENDED,
    NET_RECORD_MISSED,
    NET_RECORD_SECRET,
};

enum net_record_verdict { NET_RECORD_NONE, NET_RECORD_ALLOW, NET_RECORD_DENY };

struct net_record {
    uint64_t t_ns;
    enum net_record_kind kind;
    enum net_record_verdict verdict;
    bool has_flow; /* direction, proto, address, port are set */
    bool ingress;
    char proto[8];
    char address[48];
    uint16_t port; /* 0: none */
    char name[NET_RECORD_NAME_MAX];
    char why[NET_RECORD_WHY_MAX];
    uint64_t to_host, to_guest, ms;
    uint64_t count;
};

/* -EINVAL for anything else. */
int net_record_read(const struct log_entry *e, struct net_record *ret);
/* The members above; NULL if memory is short. */
json_t *net_record_json(const struct net_record *r);
/* One line of text, by NET_RECORD_FORMAT. */
int net_record_text(const struct net_record *r, struct buf *out);
/* "-> example.com 203.0.113.7:443", "<- 10.0.0.1 to port 80", "? example.com" */
void net_record_peer(const struct net_record *r, char *out, size_t size);
/* The reason for the decision, or how the flow ended, with counts and sizes. */
void net_record_story(const struct net_record *r, char *out, size_t size);
const char *net_record_kind_name(enum net_record_kind k);

#define NET_RECORD_FORMAT "%-19s  %-8s  %-7s  %-5s  %-44s  %s\n"

/* Bytes from a guest as text: all but printable ASCII, and the backslash, as \xNN. Truncated to
 * size. */
void net_record_escape(const char *s, char *out, size_t size);
