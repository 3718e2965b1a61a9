#include "intercept/mint.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define S(n) ((uint64_t)(n)*1000000000ULL)

static const char gone[] = "the process that mints values of secrets has ended";

/* The index of that secret, if it is minted; or how many there are. */
static size_t find(const struct config *c, const char *name)
{
    size_t i = 0;
    while (i < c->subst.n && !(c->mint[i].minted && strcmp(c->subst.secret[i].name, name) == 0))
        i++;
    return i;
}

static void failed(struct config_mint *x, const char *why)
{
    x->failed_ns = now_ns();
    (void)snprintf(x->why, sizeof(x->why), "%s", why);
}

static void lose(struct mint *m)
{
    struct config *c = m->conns->config;
    loop_close(m->conns->loop, &m->src);
    m->src.fd = -1;
    for (size_t i = 0; i < c->subst.n; i++)
        if (c->mint[i].asked) {
            c->mint[i].asked = false;
            failed(&c->mint[i], gone);
        }
    conn_resume(m->conns);
}

static void take(struct config *c, struct mint_answer *a)
{
    a->name[sizeof(a->name) - 1] = a->why[sizeof(a->why) - 1] = '\0';
    size_t i = find(c, a->name);
    if (i == c->subst.n)
        return; /* no longer bound */
    struct config_mint *x = &c->mint[i];
    x->asked = false;
    x->failed_ns = 0;
    if (a->code || a->n == 0 || a->n > sizeof(a->value))
        failed(x, a->why);
    else if (config_set_value(c, i, a->value, a->n, now_ns() + S(a->ttl_s)) < 0)
        failed(x, "out of memory");
}

static void on_answer(struct loop_src *src, uint32_t events)
{
    static struct mint_answer a;
    struct mint *m = CONTAINER_OF(src, struct mint, src);
    ssize_t k = recv(src->fd, &a, sizeof(a), MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (k == (ssize_t)sizeof(a))
        take(m->conns->config, &a);
    explicit_bzero(&a, sizeof(a));
    if (k == (ssize_t)sizeof(a))
        conn_resume(m->conns);
    else
        lose(m);
}

void mint_init(struct mint *m, struct conn_host *conns)
{
    *m = (struct mint){.src.fd = -1, .conns = conns};
}

int mint_set(struct mint *m, int fd)
{
    if (m->src.fd >= 0)
        loop_close(m->conns->loop, &m->src);
    m->src = (struct loop_src){.fd = fd, .fn = on_answer};
    int r = loop_add(m->conns->loop, &m->src, EPOLLIN);
    if (r < 0)
        close_fd(&m->src.fd);
    conn_resume(m->conns);
    return r;
}

int mint_want(struct mint *m, const char *secret, const char **why)
{
    struct config *c = m->conns->config;
    size_t i = find(c, secret);
    struct mint_ask ask = {0};
    if (i == c->subst.n)
        return -ENOENT;
    struct config_mint *x = &c->mint[i];
    *why = x->why;
    if (x->asked)
        return -EAGAIN;
    if (x->failed_ns && now_ns() - x->failed_ns < S(MINT_RETRY_S))
        return -EIO;
    (void)snprintf(ask.name, sizeof(ask.name), "%s", secret);
    if (m->src.fd < 0 ||
        send(m->src.fd, &ask, sizeof(ask), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(ask)) {
        failed(x, gone);
        return -EIO;
    }
    x->asked = true;
    return -EAGAIN;
}
