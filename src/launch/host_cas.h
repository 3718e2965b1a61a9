/* The certificate authorities that this host trusts, for --trust-host-cas. */
#pragma once

#include "util/err.h"

enum { HOST_CAS_MAX = 2 * 1024 * 1024 }; /* bytes: it must fit into a message to the agent */

/* The certificates in $SSL_CERT_FILE, or else in the distribution's bundle: PEM, with nothing else;
 * malloc'd. */
int host_cas_read(char **ret, struct err *e);
/* The same from one file, which must not be a symlink. */
int host_cas_read_file(const char *path, char **ret, struct err *e);
/* Only the certificates, each followed by a newline; malloc'd. */
char *host_cas_extract(const char *pem);
