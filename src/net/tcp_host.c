/* The host's side of a TCP flow: a non-blocking socket, watched edge-triggered for both directions
 * from the start, so that nothing is ever re-armed.
 *
 * What the guest has not acknowledged must be available for resending. If the kernel supports it
 * (SO_PEEK_OFF), it simply stays in the socket: bytes are read with MSG_PEEK, and dropped when they
 * are acknowledged. Otherwise a copy is kept.
 */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/net_impl.h"
#include "util/cleanup.h"
#include "util/iov.h"

/* #syscalls:net socket connect setsockopt getsockopt sendmsg sendto recvmsg recvfrom shutdown */

enum { KEEP_IDLE_S = 120, KEEP_EVERY_S = 30, KEEP_COUNT = 6 };

/* --- connecting ------------------------------------------------------------------------------ */

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

void tcp_failed(struct tcp_flow *t, int err, const char *how)
{
    struct net *n = t->f.net;
    n->stats.tcp_failed++;
    if (err == ENETUNREACH || err == EHOSTUNREACH || err == ETIMEDOUT || err == EADDRNOTAVAIL ||
        err == EAFNOSUPPORT) {
        out_unreachable(n, &t->f.id, t->rcv_nxt - 1,
                        err == EHOSTUNREACH || err == ETIMEDOUT ? UNREACH_HOST : UNREACH_NET);
        flow_remove(&t->f, how ? how : "unreachable");
    } else {
        tcp_abort(t, how ? how : err == ECONNREFUSED ? "refused by the peer" : "failed");
    }
}

void tcp_connected(struct tcp_flow *t)
{
    t->state = TCP_ANSWERED;
    t->since_ns = now_ns();
    t->readable = true;
    t->due |= DUE_SYN | DUE_PUMP;
    flow_work(&t->f);
}

/* The connect to the peer, or to the proxy, is over; or the proxy has answered. */
static void dialing(struct tcp_flow *t, uint32_t events)
{
    int err = 0;
    socklen_t len = sizeof(err);
    if (!(events & (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP)))
        return;
    t->hangup |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0; /* it may be its only event */
    if (getsockopt(t->f.src.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
        err = errno;
    if (err != 0)
        tcp_failed(t, err, t->socks ? tcp_proxy_lost(t) : NULL);
    else if (t->socks)
        tcp_proxy_step(t);
    else if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        tcp_connected(t);
}

static void on_host(struct loop_src *src, uint32_t events)
{
    struct tcp_flow *t = tcp_of(CONTAINER_OF(src, struct flow, src));
    if (t->state == TCP_DIALING) {
        dialing(t, events);
        return;
    }
    if ((events & EPOLLOUT) && (buf_len(&t->held) > 0))
        tcp_drain(t);
    if (t->f.dead || t->state == TCP_RESET)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        t->readable = true;
        t->hangup |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        t->due |= DUE_PUMP;
        flow_work(&t->f);
    }
}

int tcp_watch(struct tcp_flow *t, int fd)
{
    int zero = 0;
    t->f.src = (struct loop_src){.fd = fd, .fn = on_host};
    if (!t->local) {
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* the guest decides about delays */
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
        set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_EVERY_S);
        set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
        t->peek =
            t->f.net->peek_off && setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)) == 0;
    }
    return loop_add(t->f.net->loop, &t->f.src, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

void tcp_dial(struct tcp_flow *t, const struct net_verdict *v)
{
    int fd = v->fd, r = 0;
    const struct net_end *to = v->proxied ? &t->f.net->cfg.proxy.at : &v->to;
    t->local = v->action == NET_LOCAL;
    if (!t->local)
        fd = socket(addr_is4(&to->addr) ? AF_INET : AF_INET6,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        tcp_failed(t, errno == EMFILE || errno == ENFILE ? ECONNREFUSED : errno, NULL);
        return;
    }
    if (!t->local) {
        struct sockaddr_storage a;
        socklen_t alen = end_to_sockaddr(to, &a);
        r = connect(fd, (struct sockaddr *)&a, alen) < 0 ? -errno : 0;
    }
    if (r < 0 && r != -EINPROGRESS) {
        (void)close(fd);
        tcp_failed(t, -r, v->proxied ? "the proxy cannot be reached" : NULL);
        return;
    }
    if (tcp_watch(t, fd) < 0 || (v->proxied && !tcp_proxy_begin(t, &v->to))) {
        tcp_failed(t, ECONNREFUSED, NULL);
        return;
    }
    if (r == 0 && !t->socks)
        tcp_connected(t);
    else if (r == 0)
        tcp_proxy_step(t);
}

/* --- from the guest to the host -------------------------------------------------------------- */

/* Another process takes the peer's place; the peer must not have sent anything yet. -EAGAIN: that
 * process is too busy just now. */
static int divert(struct tcp_flow *t, const char *name)
{
    struct net *n = t->f.net;
    if (t->f.to_guest > 0 || t->host_eof || buf_len(&t->kept) > 0)
        return -EPROTO;
    int fd = n->hooks->divert(n->ctx, &t->f.id, name, t->f.src.fd);
    if (fd < 0)
        return fd;
    loop_close(n->loop, &t->f.src);
    t->local = true;
    t->peek = t->hangup = false;
    t->readable = true;
    return tcp_watch(t, fd);
}

/* Decides whether the first bytes may pass; until then, they are held. */
void tcp_look(struct tcp_flow *t)
{
    struct net *n = t->f.net;
    struct sniffer s;
    enum sniff_kind kind = sniff(&s, buf_head(&t->held), buf_len(&t->held), t->guest_fin);
    if (kind == SNIFF_MORE)
        return;
    t->sniffing = t->again = false;
    if (s.name[0] != '\0') {
        (void)snprintf(t->f.name, sizeof(t->f.name), "%s", s.name);
        t->f.shown = true;
    }
    enum net_passage to =
        n->hooks->named ? n->hooks->named(n->ctx, &t->f.id, t->f.tag, kind, s.name) : NET_PASS;
    int r = to == NET_DIVERT ? divert(t, s.name) : 0;
    if (r == -EAGAIN) { /* with the next tick */
        t->sniffing = t->again = true;
        net_tick_soon(n);
    } else if (to == NET_REFUSE || r < 0) {
        tcp_abort(t, r < 0 ? "cannot be intercepted" : "denied by name");
    } else {
        tcp_drain(t);
    }
}

void tcp_shut(struct tcp_flow *t)
{
    if (t->sniffing && t->guest_fin) { /* no more will come: decide by these */
        tcp_look(t);
        return;
    }
    if (t->guest_fin && !t->host_shut && buf_len(&t->held) == 0) {
        t->host_shut = true;
        (void)shutdown(t->f.src.fd, SHUT_WR);
        flow_work(&t->f);
    }
}

/* Returns how many bytes the host's kernel took; -errno if the connection is gone. The bytes were
 * granted before. */
static ssize_t give(struct tcp_flow *t, struct iovec *iov, unsigned n)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t k = sendmsg(t->f.src.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k < 0)
        return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -errno;
    t->f.to_host += (size_t)k;
    flow_charge(&t->f, DIR_OUT, (size_t)k, t->mss);
    return k;
}

/* Copies from the frame into `held`; returns how many bytes there was room for. */
static size_t hold(struct tcp_flow *t, const struct packet *p, size_t off, size_t len)
{
    struct net_stats *s = &t->f.net->stats;
    uint8_t *to = s->held < NET_HELD_MAX ? buf_reserve(&t->held, len) : NULL;
    if (!to) {
        s->memory_full++;
        return 0;
    }
    len = packet_read(p, off, to, len);
    buf_commit(&t->held, len);
    s->held += len;
    return len;
}

void tcp_accept_data(struct tcp_flow *t, const struct packet *p, size_t off, size_t len)
{
    struct iovec iov[LINK_IOV_MAX];
    ssize_t k = 0;
    assert(!t->host_shut && len <= t->rcv_edge - t->rcv_nxt);
    size_t grant = 0;
    if (!t->sniffing && buf_len(&t->held) == 0)
        grant = flow_grant(&t->f, DIR_OUT, len, t->mss);
    if (grant > 0) {
        unsigned n = iov_slice(iov, LINK_IOV_MAX, p->iov, p->n_iov, off, grant);
        k = give(t, iov, n);
        if (k < 0) {
            tcp_abort(t, "reset by the peer");
            return;
        }
    }
    size_t taken = (size_t)k;
    if (taken < len)
        taken += hold(t, p, off + taken, len - taken);
    t->rcv_nxt += (uint32_t)taken;
    if (t->sniffing)
        tcp_look(t);
    else if (grant > 0 && grant < len)
        tcp_drain(t); /* as far as limits go; then it waits for its turn */
}

void tcp_drain(struct tcp_flow *t)
{
    if (t->sniffing || t->f.src.fd < 0)
        return;
    while (buf_len(&t->held) > 0) {
        size_t grant = flow_grant(&t->f, DIR_OUT, buf_len(&t->held), t->mss);
        struct iovec iov = {.iov_base = buf_head(&t->held), .iov_len = grant};
        ssize_t k = grant > 0 ? give(t, &iov, 1) : 0;
        if (k < 0)
            tcp_abort(t, "reset by the peer");
        if (k <= 0)
            break;
        buf_consume(&t->held, (size_t)k);
        t->f.net->stats.held -= (size_t)k;
    }
    buf_shrink(&t->held);
    if (t->f.dead || t->state == TCP_RESET)
        return;
    /* Tell a guest that was held back once it is worthwhile. */
    if (t->rcv_edge - t->rcv_nxt < NET_HELD_FLOW_MAX / 2 &&
        buf_len(&t->held) < NET_HELD_FLOW_MAX / 2) {
        t->due |= DUE_ACK;
        flow_work(&t->f);
    }
    tcp_shut(t);
}

/* --- from the host to the guest -------------------------------------------------------------- */

size_t tcp_kept_room(const struct tcp_flow *t)
{
    if (t->peek)
        return SIZE_MAX;
    size_t again = t->snd_max - t->snd_nxt; /* these need no room: they are already there */
    if (again > 0)
        return again;
    size_t held = t->f.net->stats.held;
    size_t all = held < NET_HELD_MAX ? NET_HELD_MAX - held : 0;
    return MIN(all, NET_HELD_FLOW_MAX - buf_len(&t->kept));
}

/* After a read of k out of want bytes. Edge-triggered: a short read means that it is empty, and new
 * bytes cause a new event; but end of file came with an event that has passed. */
static ssize_t note_read(struct tcp_flow *t, ssize_t k, size_t want)
{
    if (k < 0) {
        t->readable = false;
        return errno == EINTR || errno == ENOMEM ? -EAGAIN : -errno;
    }
    if (k == 0) {
        if (!t->host_eof)
            t->fin_seq = t->snd_nxt;
        t->host_eof = true;
        t->readable = false;
    } else if ((size_t)k < want && !t->hangup) {
        t->readable = false;
    }
    return k;
}

ssize_t tcp_fetch(struct tcp_flow *t, struct iovec *iov, unsigned n, size_t want)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    assert(t->released == t->snd_una); /* where the copy, or the socket, starts */
    if (t->peek)
        return note_read(t, recvmsg(t->f.src.fd, &m, MSG_PEEK | MSG_DONTWAIT), want);
    size_t at = t->snd_nxt - t->snd_una;
    if (at < buf_len(&t->kept))
        return (ssize_t)iov_write(iov, n, 0, buf_head(&t->kept) + at,
                                  MIN(want, buf_len(&t->kept) - at));
    uint8_t *keep = buf_reserve(&t->kept, want);
    if (!keep)
        return -EAGAIN;
    ssize_t k = recv(t->f.src.fd, keep, want, MSG_DONTWAIT);
    if (k > 0) {
        (void)iov_write(iov, n, 0, keep, (size_t)k);
        buf_commit(&t->kept, (size_t)k);
        t->f.net->stats.held += (size_t)k;
    }
    return note_read(t, k, want);
}

void tcp_release(struct tcp_flow *t)
{
    uint32_t upto = t->snd_una;
    if (t->host_eof && seq_lt(t->fin_seq, upto))
        upto = t->fin_seq; /* a FIN is not a byte */
    size_t len = upto - t->released;
    if (!seq_lt(t->released, upto))
        return;
    t->released = upto;
    if (!t->peek) {
        len = MIN(len, buf_len(&t->kept));
        buf_consume(&t->kept, len);
        t->f.net->stats.held -= len;
        buf_shrink(&t->kept);
        return;
    }
    while (len > 0) {
        ssize_t k = recv(t->f.src.fd, NULL, len, MSG_TRUNC | MSG_DONTWAIT);
        if (k <= 0)
            break; /* an error that the next read will see */
        len -= MIN(len, (size_t)k);
    }
}

/* Makes everything that was sent but not acknowledged be resent. */
void tcp_rewind(struct tcp_flow *t)
{
    if (t->snd_nxt == t->snd_una)
        return;
    tcp_release(t);
    t->f.net->stats.resent++;
    t->snd_nxt = t->snd_una;
    t->dup_acks = 0;
    if (t->peek) {
        set_option(t->f.src.fd, SOL_SOCKET, SO_PEEK_OFF, 0);
        t->readable = true;
    }
    t->due |= DUE_PUMP;
}
