/* TLS with the guest, acting as the host that it wants, and with that host, acting as its
 * client. */
#pragma once

#include "intercept/config.h"
#include "util/err.h"

#include <openssl/ssl.h>

enum { TLS_LEAVES_MAX = 256 };

struct tls;

/* The protocols that a connection's two ends speak, as bits. The client's are offered to the
 * server, and the server's choice is what the client gets. */
enum { TLS_HTTP1 = 1, TLS_HTTP2 = 2 };
struct tls_pair {
    const char *host;
    bool heard;       /* the client has announced ... */
    unsigned offered; /* ... what it speaks */
    unsigned chosen;  /* 0: not known yet; a client that offers HTTP/2 waits for it */
};

/* bundle: the authorities that the host trusts, PEM. Both must outlive the context. */
int tls_ctx_new(struct tls **ret, const struct config *c, const char *bundle, struct err *e);
void tls_ctx_free(struct tls *t); /* may be NULL; connections keep what they use */

/* For a connection's end `fd`, non-blocking. NULL: out of memory. The pair outlives the server's side. */
SSL *tls_server(struct tls *t, struct tls_pair *p, int fd);
SSL *tls_client(struct tls *t, const char *host, int fd);
/* Sets what to offer; call it before the handshake. */
bool tls_offer(SSL *s, unsigned protocols);
/* After the handshake: what the server chose. */
unsigned tls_chosen(const SSL *s);
/* Why a handshake with a server failed. */
void tls_client_error(SSL *s, const char *host, char *out, size_t size);
/* Whether the client rejected our certificate. Call it right after the failure. */
bool tls_was_rejected(void);
