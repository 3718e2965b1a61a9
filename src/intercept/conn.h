/* One intercepted connection: TLS with the guest's client on one side and with the server on the
 * other, HTTP/1.1 in between, or HTTP/2 (h2.h) if both speak it.
 *
 * In HTTP/1.1 one request at a time: the next one is not looked at before the answer to the last one is
 * complete, so a pipeline waits in its socket. Bodies stream, with bounded buffers and back-pressure both ways.
 * Nothing is sent to the server before its certificate is verified, and no request before it was
 * parsed whole and every placeholder in it was at its place. After the server's 101 to a WebSocket
 * handshake, bytes pass as they are.
 */
#pragma once

#include "intercept/link.h"
#include "intercept/tls.h"
#include "util/list.h"
#include "util/loop.h"

enum {
    CONN_PIECE = 16 * 1024, /* a TLS record */
    CONN_HIGH = 128 * 1024, /* bytes waiting in one direction, beyond which none are read */
    CONN_HANDSHAKE_MS = 60000,
    CONN_LINGER_MS = 3000, /* for a client that still sends what nobody wants */
};

/* What connections share. */
struct conn_host {
    struct loop *loop;
    struct config *config; /* the one in force: replaced by a change */
    struct tls *tls;
    struct node all;
    unsigned n;
    void (*report)(struct conn_host *h, const struct link_report *r);
    /* A request needs that secret, whose value is not known. -EAGAIN: conn_resume() will be called;
     * another error: there will be none, and *why says why. */
    int (*want)(struct conn_host *h, const char *secret, const char **why);
    /* Signs a request with the key `value`, see s3/resign.h. */
    int (*sign)(const struct http_head *head, const char *value, const void *body, size_t n,
                struct buf *out, const char **why);
};

/* Takes both descriptors, in any case. */
int conn_new(struct conn_host *h, const struct link_flow *f, int guest_fd, int server_fd);
/* Lets connections that wait for a value check for it again. */
void conn_resume(struct conn_host *h);
