#include "net/socks.h"

#include <errno.h>

#include "net/packet.h"
#include "util/cleanup.h"

/* #syscalls:net sendto recvfrom */

enum {
    V4_CONNECT = 1,
    V4_REPLY = 8,
    V4_GRANTED = 90,
    V4_REJECTED = 91,
    V5_NO_AUTH = 0,
    V5_PASSWORD = 2,
    V5_CONNECT = 1,
    V5_IPV4 = 1,
    V5_NAME = 3,
    V5_IPV6 = 4,
    V5_REPLY_HEAD = 4,
};

static void fail(struct socks *s, int code, const char *why)
{
    s->step = SOCKS_FAILED;
    s->code = code;
    s->why = why;
    s->out_len = s->out_done = s->need = 0;
}

static void put(struct socks *s, const void *p, size_t n)
{
    memcpy(s->out + s->out_len, p, n);
    s->out_len += n;
}

static void put_byte(struct socks *s, unsigned b)
{
    s->out[s->out_len++] = (uint8_t)b;
}

/* Sends what was put, then waits for an answer of `need` bytes. */
static void ask(struct socks *s, enum socks_step step, size_t need)
{
    s->step = step;
    s->need = need;
    s->have = 0;
}

static void restart_out(struct socks *s)
{
    s->out_len = s->out_done = 0;
}

/* --- version 4 ------------------------------------------------------------------------------- */

static void begin4(struct socks *s)
{
    uint8_t port[2];
    if (!addr_is4(&s->to.addr)) {
        fail(s, ENETUNREACH, "SOCKS 4 has no IPv6");
        return;
    }
    put16(port, s->to.port);
    put_byte(s, 4);
    put_byte(s, V4_CONNECT);
    put(s, port, 2);
    put(s, addr_bytes4(&s->to.addr), 4);
    put(s, s->cfg->user, strlen(s->cfg->user) + 1);
    ask(s, SOCKS_REPLY, V4_REPLY);
}

static void reply4(struct socks *s)
{
    if (s->in[0] != 0)
        fail(s, EPROTO, "the proxy does not speak SOCKS 4");
    else if (s->in[1] == V4_GRANTED)
        s->step = SOCKS_DONE;
    else if (s->in[1] == V4_REJECTED)
        fail(s, ECONNREFUSED, "the proxy rejected it or could not connect");
    else
        fail(s, EACCES, "the proxy rejects this user");
}

/* --- version 5 ------------------------------------------------------------------------------- */

static void begin5(struct socks *s)
{
    bool user = s->cfg->user[0] != '\0';
    put_byte(s, 5);
    put_byte(s, user ? 2 : 1);
    put_byte(s, V5_NO_AUTH);
    if (user)
        put_byte(s, V5_PASSWORD);
    ask(s, SOCKS_METHOD, 2);
}

static void request5(struct socks *s)
{
    bool v4 = addr_is4(&s->to.addr);
    uint8_t port[2];
    put16(port, s->to.port);
    restart_out(s);
    put_byte(s, 5);
    put_byte(s, V5_CONNECT);
    put_byte(s, 0);
    put_byte(s, v4 ? V5_IPV4 : V5_IPV6);
    put(s, v4 ? addr_bytes4(&s->to.addr) : s->to.addr.b, v4 ? 4 : 16);
    put(s, port, 2);
    ask(s, SOCKS_REPLY, V5_REPLY_HEAD);
}

static void auth5(struct socks *s)
{
    size_t user = strlen(s->cfg->user), password = strlen(s->cfg->password);
    restart_out(s);
    put_byte(s, 1);
    put_byte(s, (unsigned)user);
    put(s, s->cfg->user, user);
    put_byte(s, (unsigned)password);
    put(s, s->cfg->password, password);
    ask(s, SOCKS_AUTH, 2);
}

static void method5(struct socks *s)
{
    if (s->in[0] != 5)
        fail(s, EPROTO, "the proxy does not speak SOCKS 5");
    else if (s->in[1] == V5_NO_AUTH)
        request5(s);
    else if (s->in[1] == V5_PASSWORD && s->cfg->user[0] != '\0')
        auth5(s);
    else
        fail(s, EACCES,
             s->cfg->user[0] != '\0' ? "the proxy does not accept a user name and password"
                                     : "the proxy requires a user name and password");
}

static void authenticated5(struct socks *s)
{
    if (s->in[0] != 1)
        fail(s, EPROTO, "the proxy does not speak SOCKS 5");
    else if (s->in[1] != 0)
        fail(s, EACCES, "the proxy rejects the user name or password");
    else
        request5(s);
}

static void refused5(struct socks *s, uint8_t code)
{
    static const struct {
        int code;
        const char *why;
    } reasons[] = {
        {0, ""},
        {ECONNREFUSED, "the proxy failed"},
        {EACCES, "the proxy's rules do not allow it"},
        {ENETUNREACH, "the proxy reports that the network is unreachable"},
        {EHOSTUNREACH, "the proxy reports that the host is unreachable"},
        {ECONNREFUSED, "the proxy reports that the peer refused it"},
        {ETIMEDOUT, "the proxy got no answer from the peer"},
        {ECONNREFUSED, "the proxy does not support connecting"},
        {ENETUNREACH, "the proxy does not support this kind of address"},
    };
    if (code < ARRAY_LEN(reasons))
        fail(s, reasons[code].code, reasons[code].why);
    else
        fail(s, EPROTO, "the proxy reports an unknown failure");
}

/* The reply contains the address from which the proxy connected, which is useless, but has to be
 * read: the head, then (for a name) its length, then the rest. */
static void reply5(struct socks *s)
{
    const uint8_t *p = s->in;
    if (p[0] != 5 || p[2] != 0) {
        fail(s, EPROTO, "the proxy does not speak SOCKS 5");
    } else if (p[1] != 0) {
        refused5(s, p[1]);
    } else if (s->have == V5_REPLY_HEAD) {
        if (p[3] == V5_IPV4 || p[3] == V5_IPV6)
            s->need = V5_REPLY_HEAD + (p[3] == V5_IPV4 ? 4 : 16) + 2;
        else if (p[3] == V5_NAME)
            s->need = V5_REPLY_HEAD + 1;
        else
            fail(s, EPROTO, "the proxy's answer is malformed");
    } else if (p[3] == V5_NAME && s->have == V5_REPLY_HEAD + 1) {
        s->need = V5_REPLY_HEAD + 1 + (size_t)p[4] + 2;
    } else {
        s->step = SOCKS_DONE;
    }
}

/* --- both ------------------------------------------------------------------------------------ */

void socks_begin(struct socks *s, const struct socks_config *c, const struct net_end *to)
{
    *s = (struct socks){.cfg = c, .to = *to};
    if (c->version == 4)
        begin4(s);
    else
        begin5(s);
}

size_t socks_need(const struct socks *s)
{
    return socks_pending(s) > 0 || s->step >= SOCKS_DONE ? 0 : s->need - s->have;
}

void socks_input(struct socks *s, const uint8_t *p, size_t n)
{
    n = MIN(n, socks_need(s));
    memcpy(s->in + s->have, p, n);
    s->have += n;
    if (n == 0 || s->have < s->need)
        return;
    switch (s->step) {
    case SOCKS_METHOD:
        method5(s);
        break;
    case SOCKS_AUTH:
        authenticated5(s);
        break;
    default:
        if (s->cfg->version == 4)
            reply4(s);
        else
            reply5(s);
        break;
    }
}

/* 1: something moved; 0: nothing can now; -errno. */
static int move(struct socks *s, int fd)
{
    ssize_t k;
    if (socks_pending(s) > 0) {
        k = send(fd, s->out + s->out_done, socks_pending(s), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0)
            s->out_done += (size_t)k;
    } else {
        uint8_t in[sizeof(s->in)];
        k = recv(fd, in, socks_need(s), MSG_DONTWAIT);
        if (k > 0)
            socks_input(s, in, (size_t)k);
        else if (k == 0)
            return -ECONNRESET;
    }
    if (k < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    return 1;
}

int socks_drive(struct socks *s, int fd)
{
    int r = 1;
    while (r > 0 && s->step < SOCKS_DONE)
        r = move(s, fd);
    if (r < 0)
        fail(s, -r, "the proxy hung up");
    if (s->step == SOCKS_FAILED)
        return -s->code;
    return s->step == SOCKS_DONE;
}
