/* HTTP/2 between the guest's client and the server: a session with each of them, and streams that are the
 * same on both sides. nghttp2 reads and writes frames; this decides what becomes of requests.
 *
 * Bytes go in and come out: no I/O, no TLS. The rules are those of HTTP/1.1 (conn.h): a request is not sent
 * before its head was read whole and every placeholder in it was at its place; all requests of a connection
 * have one authority. What is refused ends one stream, not the connection.
 *
 * Invariants:
 *  1. Bytes of bodies that wait are in the windows that we have granted: H2_WINDOW for each direction of a
 *     connection. They are granted again when they went on.
 *  2. A field with a value in it is never indexed (HPACK), and nghttp2's memory is wiped when it is freed.
 *  3. What a peer can make nghttp2 queue has a limit; a peer that floods is disconnected.
 */
#pragma once

#include "intercept/link.h"

enum {
    H2_STREAMS_MAX = 100,
    H2_WINDOW = 1 << 20,    /* of a connection; a stream has half of it */
    H2_QUEUE_MAX = 2000,    /* frames that wait to be sent */
    H2_HEADS_MAX = 1 << 20, /* bytes of heads that wait for the value of a secret */
};

enum h2_side { H2_GUEST, H2_SERVER };

struct h2_env {
    const char *host; /* what the connection is for; outlives it, as all of this does */
    unsigned port;
    const char *trouble; /* why there is no server; "": there is one */
    void *arg;
    const struct subst *(*secrets)(void *arg); /* those in force */
    void (*report)(void *arg, enum link_report_kind kind, const char *text);
    int (*want)(void *arg, const char *secret, const char **why); /* as in conn_host */
};

struct h2;

int h2_new(struct h2 **ret, const struct h2_env *env);
void h2_free(struct h2 *h); /* NULL is fine */

/* Takes what came from that side: all of it. -EPROTO, -ENOMEM: there is nothing more to take from either;
 * what h2_give() has says why. */
int h2_take(struct h2 *h, enum h2_side from, const void *p, size_t n);
/* Appends what there is for that side, until `out` has `high` bytes. *secret: there are values in it. */
bool h2_give(struct h2 *h, enum h2_side to, struct buf *out, size_t high, bool *secret);
/* The server has hung up. */
void h2_lost_server(struct h2 *h);
/* Requests that wait for a value look again. */
void h2_resume(struct h2 *h);
bool h2_waits(const struct h2 *h);
bool h2_idle(const struct h2 *h); /* there are no streams */
bool h2_over(const struct h2 *h); /* nothing will come of it any more */
