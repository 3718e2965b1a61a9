/* A TCP flow that goes through a proxy, between the host's connect to the proxy and the guest's
 * SYN-ACK. */
#include <errno.h>
#include <stdlib.h>

#include "net/net_impl.h"

enum { PROXY_S = 60 }; /* for the connect, the proxy's replies and its own connect */

bool tcp_proxy_begin(struct tcp_flow *t, const struct net_end *to)
{
    t->socks = malloc(sizeof(*t->socks));
    if (!t->socks)
        return false;
    socks_begin(t->socks, &t->f.net->cfg.proxy, to);
    return true;
}

void tcp_proxy_end(struct tcp_flow *t)
{
    free(t->socks);
    t->socks = NULL;
}

void tcp_proxy_step(struct tcp_flow *t)
{
    int r = socks_drive(t->socks, t->f.src.fd);
    if (r == 0)
        return;
    if (r < 0) {
        tcp_failed(t, -r, t->socks->why);
        return;
    }
    tcp_proxy_end(t);
    tcp_connected(t);
}

const char *tcp_proxy_lost(const struct tcp_flow *t)
{
    const struct socks *s = t->socks;
    bool talked = s->out_done > 0 || (s->cfg->version == 5 && s->step != SOCKS_METHOD);
    return talked ? "the proxy hung up" : "the proxy cannot be reached";
}

void tcp_proxy_tick(struct tcp_flow *t, uint64_t now)
{
    if (t->state == TCP_DIALING && t->socks && now - t->since_ns > PROXY_S * 1000000000ULL)
        tcp_failed(t, ETIMEDOUT, "the proxy does not answer");
}
