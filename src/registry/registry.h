/* One registry, as far as one image needs it: its manifests and its blobs.
 *
 * Endpoints (mirrors first, then the registry itself), credentials and tokens are handled here;
 * callers ask for a document or for bytes. Everything a registry sends is untrusted: bodies are
 * bounded, manifests requested by digest are checked against it, and callers check a blob's digest
 * once they have read all of it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "image/oci/reference.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/stream.h"

struct registry_options {
    bool insecure;                               /* plain HTTP, or any certificate */
    const char *ca_certs;                        /* PEM file; NULL: the system's */
    const char *home;                            /* $MSB_HOME: credentials and settings; or NULL */
    const atomic_bool *cancel[2];                /* any true: -EINTR; may be NULL */
    void (*notice)(void *ctx, const char *text); /* "retrying in 2 s: ..."; may be NULL; called from
                                                    any thread */
    void *ctx;
};

/* The HTTP library in use ("libcurl/7.88.1"), or an error that says why there is none. */
int registry_library(char *version, size_t size, struct err *e);

struct registry;

int registry_open(struct registry **ret, const struct reference *ref,
                  const struct registry_options *opt, struct err *e);
void registry_free(struct registry *r);

/* `which`: a tag, or a digest as text, which the body must then have. *digest is the digest of the
 * body, which has at most OCI_DOCUMENT_MAX bytes. */
int registry_manifest(struct registry *r, const char *which, struct buf *body,
                      struct digest *digest, struct err *e);

/* Asks the registry whether it accepts the credentials. -EACCES (e set) if it does not. */
int registry_check_login(const char *registry, const char *username, const char *password,
                         const struct registry_options *opt, struct err *e);

/* The bytes of a blob from `offset` to exactly `size`: more or fewer are EBADMSG. A broken
 * connection is resumed where it broke, with growing pauses, before the stream fails. Safe to call
 * from several threads; each stream belongs to one. */
int registry_blob(struct registry *r, const struct digest *blob, uint64_t size, uint64_t offset,
                  struct stream **ret, struct err *e);
