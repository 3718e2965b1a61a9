#include "launch/net_host.h"

#include "util/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { DNS_PORT = 53, RESOLV_MAX = 16 * 1024 };

static void add_resolver(struct net_host *h, const char *line, size_t n)
{
    static const char word[] = "nameserver";
    char text[ADDR_TEXT_MAX];
    struct net_end end = {.port = DNS_PORT};
    if (n < sizeof(word) || strncmp(line, word, sizeof(word) - 1) != 0)
        return;
    const char *p = line + sizeof(word) - 1, *stop = line + n;
    if (*p != ' ' && *p != '\t')
        return;
    while (p < stop && (*p == ' ' || *p == '\t'))
        p++;
    size_t len = strcspn(p, " \t\r\n");
    len = MIN(len, (size_t)(stop - p));
    /* An address with a scope (fe80::1%eth0) belongs to one of the host's links, to which no
     * sandbox is attached: addr_parse() rejects it. */
    if (len >= sizeof(text) || h->n_resolvers == DNS_UPSTREAMS_MAX)
        return;
    (void)snprintf(text, sizeof(text), "%.*s", (int)len, p);
    if (addr_parse(text, &end.addr) == 0)
        h->resolver[h->n_resolvers++] = end;
}

void net_host_resolvers(struct net_host *h, const char *text)
{
    h->n_resolvers = 0;
    while (*text) {
        size_t n = strcspn(text, "\n");
        add_resolver(h, text, n);
        text += n + (text[n] == '\n');
    }
    if (h->n_resolvers > 0)
        return;
    h->resolver[0].port = DNS_PORT;
    (void)addr_parse("127.0.0.1", &h->resolver[0].addr);
    h->n_resolvers = 1;
}

/* Connecting a UDP socket consults the routing table and sends nothing. Any global address will do;
 * this is a root name server's. */
static bool has_route6(void)
{
    struct net_end end = {.port = DNS_PORT};
    struct sockaddr_storage sa;
    (void)addr_parse("2001:7fd::1", &end.addr);
    socklen_t len = end_to_sockaddr(&end, &sa);
    AUTO_CLOSE int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&sa, len) == 0;
}

void net_host_look(struct net_host *ret)
{
    char text[RESOLV_MAX];
    *ret = (struct net_host){.ipv6 = has_route6()};
    AUTO_CLOSE int fd = open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    net_host_resolvers(ret, text);
}
