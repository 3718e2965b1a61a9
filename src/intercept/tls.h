/* TLS towards the guest, as the host that it wants, and towards that host, as its client. */
#ifndef MSB_INTERCEPT_TLS_H
#define MSB_INTERCEPT_TLS_H

#include "intercept/config.h"
#include "util/err.h"

#include <openssl/ssl.h>

enum { TLS_LEAVES_MAX = 256 };

struct tls;

/* bundle: the authorities that the host trusts, PEM. Both have to outlive it. */
int tls_ctx_new(struct tls **ret, const struct config *c, const char *bundle, struct err *e);
void tls_ctx_free(struct tls *t); /* NULL is fine; connections keep what they use */

/* For a connection's end `fd`, non-blocking. NULL: out of memory. */
SSL *tls_server(struct tls *t, const char *host, int fd);
SSL *tls_client(struct tls *t, const char *host, int fd);
/* Why a handshake with a server failed. */
void tls_client_error(SSL *s, const char *host, char *out, size_t size);
/* The client said that it does not like our certificate. Call it right after the failure. */
bool tls_was_rejected(void);

#endif
