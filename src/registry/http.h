/* HTTP requests whose answers are read as a stream, and whose bodies come from a file or from
 * memory.
 *
 * The reader pulls: the network is read only inside http_read(), so a slow reader slows the sender
 * and memory stays fixed. A `struct http` belongs to one server and those it redirects to; it may
 * be used from several threads, each answer from one at a time.
 *
 * What a server can make us do:
 * 1. Redirects are followed here, HTTP_REDIRECTS_MAX at most. Authorization is sent only to the
 *    scheme, host and port for which it was given.
 * 2. https never becomes http, unless the server is allowed to be insecure.
 * 3. A redirect (or a token server that the registry names) cannot lead to loopback, link-local or
 *    cloud metadata addresses unless the registry itself has one of that kind (address.h). What
 *    counts is the address that is connected to and, for the registry, the one that answered.
 * 4. A connection that moves less than HTTP_STALL_BYTES in the time-out, while we want bytes, is
 *    dropped.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/buf.h"
#include "util/err.h"
#include "util/strlist.h"

enum {
    HTTP_REDIRECTS_MAX = 10,
    HTTP_HEADER_MAX = 16 << 10, /* of each header that is kept */
    HTTP_STALL_BYTES = 1024,
    HTTP_CONNECT_MS = 15000,
    HTTP_TIMEOUT_MS = 30000, /* stall; MSB_REGISTRY_TIMEOUT, a duration, sets both */
    HTTP_STORE_FACTOR = 10,  /* how much longer a server may take to store what it was sent */
};

struct http_options {
    bool insecure;                /* do not check certificates; allow redirects to http */
    const char *ca_certs;         /* PEM file, in addition to the system's; may be NULL */
    const atomic_bool *cancel[2]; /* any true: stop; may be NULL */
};

struct http;
int http_new(struct http **ret, const struct http_options *opt, struct err *e);
void http_free(struct http *h);

/* What a request sends. */
struct http_send {
    const void *p; /* NULL: it is in the file, from its start */
    int fd;
    uint64_t size;
    void (*sent)(void *ctx, uint64_t bytes); /* so far; may be NULL; the count may restart */
    void *ctx;
};

struct http_request {
    const char *url;
    const char *accept;        /* value of the header; NULL: none */
    const char *authorization; /* likewise */
    const char *form;          /* set: it is POSTed */
    uint64_t from;             /* first byte wanted */
    bool foreign;              /* a server named this URL: rule 3 holds from the first hop on */

    /* For APIs. A redirect is then a response like any other, since a signature is for one URL. */
    const char *method;            /* NULL: GET, or POST */
    const struct strlist *headers; /* more of them, "name:value"; NULL: none */
    const void *body;              /* with a method; must stay valid until the response */
    size_t body_len;
    const struct http_send *send;                   /* in place of the body */
    const char *content_type;                       /* of either; NULL: application/octet-stream */
    void (*on_header)(void *ctx, const char *line); /* each header of the answer; may be NULL */
    void *header_ctx;
};

/* An answer whose headers have arrived. Strings are empty where there was no such header. */
struct http_response {
    long status;
    bool foreign;                    /* a server other than the requested one sent it */
    int64_t length;                  /* of the body; -1: not given */
    uint64_t range_from, range_size; /* of Content-Range; size 0: not given */
    char docker_digest[256];
    char retry_after[64];
    char *location;   /* absolute; NULL: none */
    char *challenges; /* all WWW-Authenticate headers, joined by ", "; NULL: none */
};

/* Errors name the host and have one of these codes: ECONNREFUSED, EHOSTUNREACH (no such name or no
 * route), ETIMEDOUT, ECONNRESET (connection lost), EPROTO (no TLS there), EKEYREJECTED
 * (certificate), EPERM (rules 1 to 3), EINTR (canceled), EIO (anything else). Any HTTP status is
 * success here. */
int http_open(struct http *h, const struct http_request *q, struct http_response **ret,
              struct err *e);
/* 1..n bytes, 0 at the end, or -errno. */
ssize_t http_read(struct http_response *r, void *p, size_t n, struct err *e);
void http_close(struct http_response *r);

/* Reads all of it; -EFBIG (e not set) if it exceeds the buffer's limit. */
int http_body(struct http_response *r, struct buf *b, struct err *e);

/* The value in "Name: value", if the name matches; else NULL. */
const char *http_header_value(const char *line, const char *name);

/* Whether two URLs have the same scheme, host and port. */
bool http_same_origin(const char *a, const char *b);
/* Percent-encodes what a query cannot hold. malloc'd. */
char *http_escape(const char *text);
/* Waits, unless canceled: -EINTR. */
int http_pause(const struct http *h, uint64_t ms, struct err *e);
