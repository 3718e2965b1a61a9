#include "registry/address.h"

#include "util/cleanup.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <strings.h>

static unsigned kind_of(const struct net_addr *a)
{
    return 1U << addr_classify(a) & (ADDRESS_LOOPBACK | ADDRESS_LINK_LOCAL | ADDRESS_META);
}

unsigned address_kind(const struct sockaddr *sa, socklen_t len)
{
    struct sockaddr_storage s = {0};
    struct net_end end;
    memcpy(&s, sa, MIN(len, sizeof(s)));
    /* Anything but IP, such as a Unix socket, is on this machine. */
    return end_from_sockaddr(&s, &end) ? kind_of(&end.addr) : ADDRESS_LOOPBACK;
}

unsigned address_kind_text(const char *host)
{
    char text[64];
    size_t n = strlen(host);
    bool brackets = n > 2 && host[0] == '[' && host[n - 1] == ']';
    (void)snprintf(text, sizeof(text), "%.*s", (int)(brackets ? n - 2 : n), host + brackets);
    text[strcspn(text, "%")] = '\0'; /* a scope */
    struct net_addr a;
    struct in_addr in;
    if (addr_parse(text, &a) == 0)
        return kind_of(&a);
    if (inet_aton(text, &in)) { /* decimal and octal spellings too */
        a = addr_from4((const uint8_t *)&in);
        return kind_of(&a);
    }
    size_t dot = n > 0 && host[n - 1] == '.';
    return (n - dot == 9 && strncasecmp(host, "localhost", 9) == 0) ||
                   (n - dot > 10 && strncasecmp(host + n - dot - 10, ".localhost", 10) == 0)
               ? ADDRESS_LOOPBACK
               : 0;
}
