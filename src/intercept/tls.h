/* TLS towards the guest, as the host that it wants, and towards that host, as its client. */
#pragma once

#include "intercept/config.h"
#include "util/err.h"

#include <openssl/ssl.h>

enum { TLS_LEAVES_MAX = 256 };

struct tls;

/* What the two ends of a connection speak: bits. The client says what it can; the server is offered that,
 * and what it takes is what the client gets. */
enum { TLS_HTTP1 = 1, TLS_HTTP2 = 2 };
struct tls_pair {
    const char *host;
    bool heard;       /* the client has said ... */
    unsigned offered; /* ... what it speaks */
    unsigned chosen;  /* 0: not known yet; a client that offers HTTP/2 waits for it */
};

/* bundle: the authorities that the host trusts, PEM. Both have to outlive it. */
int tls_ctx_new(struct tls **ret, const struct config *c, const char *bundle, struct err *e);
void tls_ctx_free(struct tls *t); /* NULL is fine; connections keep what they use */

/* For a connection's end `fd`, non-blocking. NULL: out of memory. The pair outlives the server's side. */
SSL *tls_server(struct tls *t, struct tls_pair *p, int fd);
SSL *tls_client(struct tls *t, const char *host, int fd);
/* Before its handshake: what to offer. */
bool tls_offer(SSL *s, unsigned protocols);
/* After it: what the server took. */
unsigned tls_chosen(const SSL *s);
/* Why a handshake with a server failed. */
void tls_client_error(SSL *s, const char *host, char *out, size_t size);
/* The client said that it does not like our certificate. Call it right after the failure. */
bool tls_was_rejected(void);
