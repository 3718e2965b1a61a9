/* Certificates for the guest's clients.
 *
 *     $MSB_HOME/ca/ca.key, ca.crt     this installation's certificate authority, made at first use
 *       │                             (or the user's own, from files that are never written)
 *       └ issuer                      one per start of a sandbox: for its hosts alone (name constraints)
 *           └ leaf                    one per host, for two days
 *
 * The interceptor has the issuer's key, never the authority's: that is only read by a process with
 * the user's rights, which sees no bytes from any guest and ends once it has signed. Guests get the
 * authority's certificate.
 */
#pragma once

#include "intercept/config.h"
#include "util/err.h"

#include <openssl/evp.h>
#include <openssl/x509.h>

/* DER, malloc'd. */
struct ca_issued {
    uint8_t *key, *cert;
    size_t key_len, cert_len;
};
void ca_issued_free(struct ca_issued *i); /* wipes the key */

/* Opens the authority's directory; *ret is -1 if users bring their own authority. Checks that an
 * existing key is private. */
int ca_open(const struct config *c, int *ret, struct err *e);
/* Reads the authority there, or creates it (unless guests were told about another one), or reads
 * the user's own; then issues a certificate for the hosts of `c`. */
int ca_issue(int dir, const struct config *c, struct ca_issued *ret, struct err *e);

/* A certificate for that host. NULL: out of memory, or not a host name. */
X509 *ca_leaf(X509 *issuer, EVP_PKEY *issuer_key, EVP_PKEY *key, const char *host);
