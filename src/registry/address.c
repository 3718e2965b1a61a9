#include "registry/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static unsigned kind4(uint32_t a)
{
    if (a >> 24 == 127 || a >> 24 == 0)
        return ADDRESS_LOOPBACK;
    if (a >> 16 == 0xa9fe)
        return ADDRESS_LINK_LOCAL;
    /* Metadata services outside 169.254/16: 100.100.100.200 and 192.0.0.192. */
    return a == 0x646464c8 || a == 0xc00000c0 ? ADDRESS_LINK_LOCAL : 0;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static unsigned kind6(const struct in6_addr *a)
{
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b};
    static const uint8_t metadata[16] = {0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0,
                                         0,    0, 0,    0,    0, 0, 2, 0x54};
    const uint8_t *b = a->s6_addr;
    if (IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_UNSPECIFIED(a))
        return ADDRESS_LOOPBACK;
    if (IN6_IS_ADDR_LINKLOCAL(a) || memcmp(b, metadata, 16) == 0)
        return ADDRESS_LINK_LOCAL;
    if (IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_V4COMPAT(a) || memcmp(b, nat64, 12) == 0)
        return kind4(be32(b + 12));
    if (b[0] == 0x20 && b[1] == 0x02)
        return kind4(be32(b + 2));
    return 0;
}

unsigned address_kind(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof(in));
        return kind4(ntohl(in.sin_addr.s_addr));
    }
    if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        return kind6(&in6.sin6_addr);
    }
    return ADDRESS_LOOPBACK; /* nothing of the sort is on a network */
}

unsigned address_kind_text(const char *host)
{
    char text[64];
    size_t n = strlen(host);
    bool brackets = n > 2 && host[0] == '[' && host[n - 1] == ']';
    (void)snprintf(text, sizeof(text), "%.*s", (int)(brackets ? n - 2 : n), host + brackets);
    text[strcspn(text, "%")] = '\0'; /* a scope */
    struct in_addr in;
    struct in6_addr in6;
    if (inet_pton(AF_INET6, text, &in6) == 1)
        return kind6(&in6);
    if (inet_aton(text, &in)) /* decimal and octal spellings too */
        return kind4(ntohl(in.s_addr));
    size_t dot = n > 0 && host[n - 1] == '.';
    return (n - dot == 9 && strncasecmp(host, "localhost", 9) == 0) ||
                   (n - dot > 10 && strncasecmp(host + n - dot - 10, ".localhost", 10) == 0)
               ? ADDRESS_LOOPBACK
               : 0;
}
