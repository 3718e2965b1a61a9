/* Secrets that the guest never sees: which placeholder stands for which value, for which hosts and
 * in which places of a request, and the substitution itself.
 *
 * A placeholder is replaced only in the listed places: in Authorization (also inside the base64 of
 * Basic), X-Api-Key, Api-Key, Private-Token, and any others that the secret names (a header, a
 * query parameter). Anywhere else, or on its way to a host that it is not bound to, it is a
 * violation, and the request is not sent. Pure functions: no I/O.
 */
#pragma once

#include "intercept/http1.h"
#include "util/buf.h"

enum {
    SUBST_SECRETS_MAX = 64,
    SUBST_HOSTS_MAX = 32, /* of one secret */
    SUBST_PLACES_MAX = 8, /* of one secret, besides the default ones */
    SUBST_NAME_MAX = 128, /* of a secret, a header, a parameter; with its zero */
    SUBST_HOST_MAX = 254,
    SUBST_PATH_MAX = 256,
    SUBST_HOLDER_MIN = 12, /* shorter ones could turn up by chance */
    SUBST_HOLDER_MAX = 128,
    SUBST_HEAD_MAX = 256 * 1024, /* of a head with values in it */
    SUBST_TEXT_MAX = 400,
};

/* Where a secret may go. */
struct subst_host {
    char name[SUBST_HOST_MAX]; /* lower case */
    bool suffix;               /* also anything below it */
    char method[16];           /* "": any */
    char path[SUBST_PATH_MAX]; /* prefix of allowed paths; "": any */
};

/* Where in a request a secret may be. The last three are properties of a secret rather than
 * places. */
enum subst_where {
    SUBST_HEADER,
    SUBST_QUERY,
    SUBST_BODY,
    SUBST_RESPONSE,  /* scrubbed */
    SUBST_PLAINTEXT, /* it may go to http:// URLs */
    SUBST_SIGN,      /* it is an AWS key: it signs requests, but is never in them */
};
struct subst_place {
    enum subst_where where;
    char name[SUBST_NAME_MAX]; /* of the header or parameter */
};

struct subst_secret {
    char name[SUBST_NAME_MAX];
    char holder[SUBST_HOLDER_MAX + 1]; /* the placeholder */
    size_t holder_len;
    const char *value; /* not owned; NULL: not known yet */
    size_t value_len;
    struct subst_host host[SUBST_HOSTS_MAX];
    size_t n_hosts;
    struct subst_place place[SUBST_PLACES_MAX];
    size_t n_places;
};

struct subst {
    struct subst_secret *secret;
    size_t n;
};

/* Whether any secret is bound to that host. */
bool subst_concerns(const struct subst *s, const char *host);
/* Whether `name` (lower case) is that host or, with `suffix`, below it. */
bool subst_host_matches(const struct subst_host *h, const char *name);

/* Whether it may be in that request's body; and whether it is removed from that host's
 * responses. */
bool subst_in_body(const struct subst_secret *x, const char *host, const struct http_head *h);
bool subst_scrubs(const struct subst_secret *x, const char *host);
/* The secret with which to sign this request, since it was signed with its placeholder; NULL: none,
 * and subst_head() reports what is wrong with others. And whether any secret signs requests to that
 * host. */
const struct subst_secret *subst_signer(const struct subst *s, const char *host,
                                        const struct http_head *h);
bool subst_signs(const struct subst *s, const char *host);
/* Encodes it as a query or form parameter: everything but the unreserved characters as %XX. */
int subst_put_encoded(struct buf *out, const char *p, size_t n);

/* Writes the head of a request to `host` with values in place of placeholders. -EPERM: a violation,
 * with a sentence about it in `why`; -EAGAIN: the value of the secret that `why` names is not known
 * yet; -E2BIG: too long with the values in it; -ENOMEM. The content of `out` is always secret. */
int subst_head(const struct subst *s, const char *host, const struct http_head *h, struct buf *out,
               char why[SUBST_TEXT_MAX]);

/* The same for just the target, and for the value of field i. */
int subst_target(const struct subst *s, const char *host, const struct http_head *h,
                 struct buf *out, char why[SUBST_TEXT_MAX]);
int subst_value(const struct subst *s, const char *host, const struct http_head *h, size_t i,
                struct buf *out, char why[SUBST_TEXT_MAX]);

struct swap; /* swap.h */

/* A search for placeholders in bytes that arrive in pieces. */
struct subst_search {
    char tail[SUBST_HOLDER_MAX];
    size_t n;
};
/* The secret whose placeholder is in these bytes, or began in earlier ones, and is not one of those
 * that `allowed` (NULL: none) replaces; NULL: none. */
const struct subst_secret *subst_find(const struct subst *s, const struct swap *allowed,
                                      struct subst_search *x, const char *p, size_t n);
