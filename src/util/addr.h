/* Internet addresses: IPv6, or IPv4 in its mapped form ::ffff:a.b.c.d. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

enum { ADDR_TEXT_MAX = 48, END_TEXT_MAX = ADDR_TEXT_MAX + 8 };

struct net_addr {
    uint8_t b[16];
};

/* One end of a flow. */
struct net_end {
    struct net_addr addr;
    uint16_t port;
};

static inline bool addr_equal(const struct net_addr *a, const struct net_addr *b)
{
    return memcmp(a->b, b->b, 16) == 0;
}
static inline bool end_equal(const struct net_end *a, const struct net_end *b)
{
    return a->port == b->port && addr_equal(&a->addr, &b->addr);
}

bool addr_is4(const struct net_addr *a);
struct net_addr addr_from4(const uint8_t b[4]);
struct net_addr addr_from6(const uint8_t b[16]);
/* The four bytes of an IPv4 address; only where addr_is4. */
static inline const uint8_t *addr_bytes4(const struct net_addr *a)
{
    return a->b + 12;
}
/* Whether the first `bits` bits are the same (of the mapped form: IPv4 prefixes are 96 longer). */
bool addr_prefix_equal(const struct net_addr *a, const struct net_addr *b, unsigned bits);
/* Whether the address is in that network (bits as above). No IPv4 address is in an IPv6 one, not
 * even in ::/0. */
bool addr_in_network(const struct net_addr *a, const struct net_addr *network, unsigned bits);

/* "1.2.3.4" or "2001:db8::1"; nothing else: no octal, no short forms, no scope. */
int addr_parse(const char *s, struct net_addr *ret);
void addr_format(const struct net_addr *a, char out[ADDR_TEXT_MAX]);
/* "1.2.3.4:80", "[2001:db8::1]:80" */
void end_format(const struct net_end *e, char out[END_TEXT_MAX]);

/* IP, IP:PORT, [IP6] or [IP6]:PORT; an IPv6 address alone needs no brackets. `port` is the default;
 * 0: the text must name one. */
bool end_parse(const char *text, uint16_t port, struct net_end *ret);

/* For the host's sockets. */
socklen_t end_to_sockaddr(const struct net_end *e, struct sockaddr_storage *ret);
/* False unless it is IPv4 or IPv6. */
bool end_from_sockaddr(const struct sockaddr_storage *s, struct net_end *ret);
