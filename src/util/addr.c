#include "util/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

#include "util/parse.h"

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool addr_is4(const struct net_addr *a)
{
    return memcmp(a->b, mapped, sizeof(mapped)) == 0;
}

struct net_addr addr_from4(const uint8_t b[4])
{
    struct net_addr a;
    memcpy(a.b, mapped, sizeof(mapped));
    memcpy(a.b + 12, b, 4);
    return a;
}

struct net_addr addr_from6(const uint8_t b[16])
{
    struct net_addr a;
    memcpy(a.b, b, 16);
    return a;
}

bool addr_prefix_equal(const struct net_addr *a, const struct net_addr *b, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    if (memcmp(a->b, b->b, whole) != 0)
        return false;
    return rest == 0 || ((a->b[whole] ^ b->b[whole]) >> (8 - rest)) == 0;
}

bool addr_in_network(const struct net_addr *a, const struct net_addr *network, unsigned bits)
{
    return (bits >= 8 * sizeof(mapped) || !addr_is4(a)) && addr_prefix_equal(a, network, bits);
}

int addr_parse(const char *s, struct net_addr *ret)
{
    uint8_t b[16];
    if (inet_pton(AF_INET, s, b) == 1)
        *ret = addr_from4(b);
    else if (inet_pton(AF_INET6, s, b) == 1)
        *ret = addr_from6(b);
    else
        return -EINVAL;
    return 0;
}

void addr_format(const struct net_addr *a, char out[ADDR_TEXT_MAX])
{
    if (addr_is4(a))
        (void)inet_ntop(AF_INET, addr_bytes4(a), out, ADDR_TEXT_MAX);
    else
        (void)inet_ntop(AF_INET6, a->b, out, ADDR_TEXT_MAX);
}

void end_format(const struct net_end *e, char out[END_TEXT_MAX])
{
    char text[ADDR_TEXT_MAX];
    addr_format(&e->addr, text);
    (void)snprintf(out, END_TEXT_MAX, addr_is4(&e->addr) ? "%s:%u" : "[%s]:%u", text, e->port);
}

bool end_parse(const char *text, uint16_t port, struct net_end *ret)
{
    char host[ADDR_TEXT_MAX];
    uint64_t number = port;
    const char *from = text, *end, *rest;
    if (addr_parse(text, &ret->addr) == 0) {
        ret->port = port;
        return port != 0;
    }
    if (*text == '[') {
        from = text + 1;
        end = strchr(from, ']');
        rest = end ? end + 1 : NULL;
    } else {
        end = rest = strchr(from, ':');
    }
    if (!end || (size_t)(end - from) >= sizeof(host))
        return false;
    (void)snprintf(host, sizeof(host), "%.*s", (int)(end - from), from);
    if (*rest && (*rest != ':' || parse_u64(rest + 1, &number) < 0))
        return false;
    if (number < 1 || number > 65535)
        return false;
    ret->port = (uint16_t)number;
    return addr_parse(host, &ret->addr) == 0 && (*text != '[') == addr_is4(&ret->addr);
}

socklen_t end_to_sockaddr(const struct net_end *e, struct sockaddr_storage *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (addr_is4(&e->addr)) {
        struct sockaddr_in s = {.sin_family = AF_INET, .sin_port = htons(e->port)};
        memcpy(&s.sin_addr, addr_bytes4(&e->addr), 4);
        memcpy(ret, &s, sizeof(s));
        return sizeof(s);
    }
    struct sockaddr_in6 s = {.sin6_family = AF_INET6, .sin6_port = htons(e->port)};
    memcpy(&s.sin6_addr, e->addr.b, 16);
    memcpy(ret, &s, sizeof(s));
    return sizeof(s);
}

bool end_from_sockaddr(const struct sockaddr_storage *s, struct net_end *ret)
{
    if (s->ss_family == AF_INET) {
        struct sockaddr_in a;
        memcpy(&a, s, sizeof(a));
        ret->addr = addr_from4((const uint8_t *)&a.sin_addr);
        ret->port = ntohs(a.sin_port);
        return true;
    }
    if (s->ss_family == AF_INET6) {
        struct sockaddr_in6 a;
        memcpy(&a, s, sizeof(a));
        ret->addr = addr_from6((const uint8_t *)&a.sin6_addr);
        ret->port = ntohs(a.sin6_port);
        return true;
    }
    return false;
}
