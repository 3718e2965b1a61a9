#include "launch/publish.h"

#include "net/packet.h"
#include "store/ports.h"
#include "util/cleanup.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BACKLOG = 256 };

static bool has_port(const struct store *s, const struct sandbox *sb, const struct spec_port *want)
{
    struct spec_port *p;
    size_t n;
    bool found = false;
    if (!sb->state.pid || sandbox_ports(s, sb, &p, &n) < 0)
        return false;
    for (size_t i = 0; i < n; i++)
        found = found || spec_port_clashes(&p[i], want);
    free(p);
    return found;
}

static void hint_owner(const struct store *s, const struct spec_port *want, struct err *e)
{
    struct sandbox *list;
    size_t n;
    const char *owner = NULL;
    if (!s || store_list(s, &list, &n, NULL) < 0)
        return;
    for (size_t i = 0; !owner && i < n; i++)
        if (has_port(s, &list[i], want))
            owner = list[i].spec.name;
    if (owner)
        err_hint(e,
                 "sandbox '%s' publishes it: run `msb stop %s`, or choose another port (0: any "
                 "free one)",
                 owner, owner);
    else
        err_hint(e, "another program has it; choose another port (0: any free one)");
    sandbox_list_free(list, n);
}

static int publish_error(const struct store *s, const struct spec_port *want, int code,
                         struct err *e)
{
    char end[END_TEXT_MAX], bind[ADDR_TEXT_MAX];
    end_format(&(struct net_end){.addr = want->bind, .port = want->host}, end);
    addr_format(&want->bind, bind);
    const char *proto = want->proto == PROTO_UDP ? "udp" : "tcp";
    switch (code) {
    case EADDRINUSE:
        err_set(e, code, "cannot publish %s/%s: the port is in use", end, proto);
        hint_owner(s, want, e);
        break;
    case EADDRNOTAVAIL:
        err_set(e, code, "cannot publish %s/%s: this host has no address %s", end, proto, bind);
        break;
    case EACCES:
    case EPERM:
        err_set(e, code, "cannot publish %s/%s: permission denied", end, proto);
        err_hint(e, "ports below 1024 are reserved for root; choose a higher one, such as %u",
                 8000 + want->host % 1000);
        break;
    default:
        err_sys(e, code, "cannot publish %s/%s", end, proto);
    }
    return -code;
}

static int bind_socket(const struct spec_port *want, int *ret_fd, uint16_t *port)
{
    const int one = 1;
    struct sockaddr_storage sa;
    struct net_end end = {.addr = want->bind, .port = want->host};
    socklen_t len = end_to_sockaddr(&end, &sa);
    int type = want->proto == PROTO_UDP ? SOCK_DGRAM : SOCK_STREAM;
    AUTO_CLOSE int fd = socket(sa.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (sa.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (type == SOCK_STREAM) /* connections of an earlier run may still be closing */
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&sa, len) < 0 ||
        (type == SOCK_STREAM && listen(fd, BACKLOG) < 0))
        return -errno;
    len = sizeof(sa);
    if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0 || !end_from_sockaddr(&sa, &end))
        return -errno;
    *port = end.port;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int publish_bind(const struct store *s, const struct spec_port *want, int *ret_fd,
                 struct spec_port *got, struct err *e)
{
    *got = *want;
    int r = bind_socket(want, ret_fd, &got->host);
    return r < 0 ? publish_error(s, want, -r, e) : 0;
}
