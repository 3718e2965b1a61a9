/* One intercepted connection: TLS with the guest's client on one side and with the server on the
 * other, HTTP/1.1 in between, or HTTP/2 (h2.h) if both speak it.
 *
 * In HTTP/1.1, one request at a time: the next one is not read before the response to the last one
 * is complete, so pipelined requests wait in the socket. Bodies stream, with bounded buffers and
 * back-pressure both ways. Nothing is sent to the server before its certificate is verified, and no
 * request before it was completely parsed and every placeholder in it was found to be in an allowed
 * place. After the server's 101 to a WebSocket handshake, bytes pass unchanged.
 */
#pragma once

#include "intercept/link.h"
#include "intercept/tls.h"
#include "util/list.h"
#include "util/loop.h"

enum {
    CONN_PIECE = 16 * 1024, /* a TLS record */
    CONN_HIGH = 128 * 1024, /* once this many bytes wait in one direction, no more are read */
    CONN_HANDSHAKE_MS = 60000,
    CONN_LINGER_MS = 3000, /* for a client that still sends unwanted bytes */
};

/* Shared by all connections. */
struct conn_host {
    struct loop *loop;
    struct config *config; /* the one in force: replaced by a change */
    struct tls *tls;
    struct node all;
    unsigned n;
    void (*report)(struct conn_host *h, const struct link_report *r);
    /* A request needs that secret, whose value is not known. -EAGAIN: conn_resume() will be called;
     * another error: there will be no value, and *why says why. */
    int (*want)(struct conn_host *h, const char *secret, const char **why);
    /* Signs a request with the key `value`, see s3/resign.h. */
    int (*sign)(const struct http_head *head, const char *value, const void *body, size_t n,
                struct buf *out, const char **why);
};

/* Takes both descriptors, in any case. */
int conn_new(struct conn_host *h, const struct link_flow *f, int guest_fd, int server_fd);
/* Makes connections that wait for a value check again. */
void conn_resume(struct conn_host *h);
