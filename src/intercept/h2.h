/* HTTP/2 between the guest's client and the server: a session with each of them, and the same
 * streams on both sides. nghttp2 reads and writes frames; this code decides what happens to
 * requests.
 *
 * Bytes go in and come out: no I/O, no TLS. The rules are those of HTTP/1.1 (conn.h): a request is
 * not sent before its whole head was read and every placeholder in it was found to be in an allowed
 * place; all requests on a connection have the same authority. A refusal ends one stream, not the
 * connection.
 *
 * Invariants:
 *  1. Waiting body bytes are within the windows that we have granted: H2_WINDOW for each direction
 *     of a connection. They are granted again once the bytes were passed on.
 *  2. A field with a value in it is never indexed (HPACK), and nghttp2's memory is wiped when it is freed.
 *  3. What a peer can make nghttp2 queue, for itself or for the other side, has a limit; a peer that
 *     floods is disconnected. While a server takes no more requests, even those that were reset stay
 *     in its queue.
 */
#pragma once

#include "intercept/link.h"

enum {
    H2_STREAMS_MAX = 100,
    H2_WINDOW = 1 << 20,    /* for a connection; a stream gets half of it */
    H2_QUEUE_MAX = 2000,    /* frames waiting to be sent */
    H2_HEADS_MAX = 1 << 20, /* bytes of heads waiting for a secret's value, or for the server */
};

enum h2_side { H2_GUEST, H2_SERVER };

struct h2_env {
    const char *host; /* the host of the connection; outlives it, like everything here */
    unsigned port;
    const char *trouble; /* why there is no server; "": there is one */
    void *arg;
    const struct subst *(*secrets)(void *arg); /* the current secrets */
    void (*report)(void *arg, enum link_report_kind kind, const char *text);
    int (*want)(void *arg, const char *secret, const char **why); /* as in conn_host */
};

struct h2;

int h2_new(struct h2 **ret, const struct h2_env *env);
void h2_free(struct h2 *h); /* may be NULL */

/* Takes everything received from that side. -EPROTO, -ENOMEM: takes no more from either side; what
 * h2_give() then returns explains why. */
int h2_take(struct h2 *h, enum h2_side from, const void *p, size_t n);
/* Appends output for that side, until `out` has `high` bytes. *secret: it contains values. */
bool h2_give(struct h2 *h, enum h2_side to, struct buf *out, size_t high, bool *secret);
/* The server has hung up. */
void h2_lost_server(struct h2 *h);
/* Makes requests that wait for a value check again. */
void h2_resume(struct h2 *h);
bool h2_waits(const struct h2 *h);
bool h2_idle(const struct h2 *h); /* there are no streams */
bool h2_over(const struct h2 *h); /* no more will come of it */
