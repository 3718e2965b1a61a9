/* Secrets that are bound to hosts: the guest gets a placeholder, and the value takes its place on the
 * way to these hosts (src/intercept). And the rest of what is said about looking into TLS.
 *
 *     NAME@HOST[/PATH][,HOST...][,OPTION...]
 *
 *     HOST    a host name, or *.SUFFIX (with and without something in front); /PATH: what the path of
 *             a request has to begin with
 *     OPTION  method=METHOD            only such requests
 *             in=header:NAME           may be in this header, too; in=query:NAME: in this parameter;
 *                                      in=body: in the body
 *             allow-plaintext          may be sent over http:// (port 80), too
 *             sign=aws                 it is an AWS key, ID:SECRET[:TOKEN]: requests that were signed with
 *                                      the placeholder are signed again
 *             scrub=response           a value that comes back becomes the placeholder again
 *             placeholder=TEXT         what the guest gets; otherwise msb_ and 40 random characters
 *
 * Texts are kept as they were given, with their placeholder, and checked when they are set.
 */
#pragma once

#include "intercept/subst.h"
#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>

enum {
    SPEC_BOUND_TEXT_MAX = 16 * 1024,
    SPEC_TLS_HOSTS_MAX = 64,
    SPEC_TLS_CAS_MAX = 8,
    SPEC_TLS_PORTS_MAX = 8, /* besides 443 */
};

/* What a placeholder in the wrong place causes, in addition to not being sent. */
enum spec_violation { VIOLATION_BLOCK, VIOLATION_LOG, VIOLATION_TERMINATE };

struct spec_bound {
    struct strlist secrets; /* NAME@..., one for each NAME */
    enum spec_violation on_violation;
    struct strlist intercept;          /* hosts to look into without a secret */
    struct strlist bypass;             /* hosts to leave alone in any case */
    struct strlist cas;                /* files with authorities for servers: FILE, or HOST=FILE */
    uint16_t port[SPEC_TLS_PORTS_MAX]; /* where TLS is intercepted, in addition to 443 */
    size_t n_ports;
    char *ca_cert, *ca_key;   /* files: the authority that the guest is to trust; NULL: msb's own */
    struct strlist no_verify; /* hosts whose certificates are not verified */
    bool quic;                /* UDP to intercepted hosts without a secret is open */
};

void spec_bound_free(struct spec_bound *b);
/* Whether connections are intercepted at all. */
static inline bool spec_bound_any(const struct spec_bound *b)
{
    return b->secrets.n > 0 || b->intercept.n > 0;
}

/* Adds one, or more hosts to one of that name; gives it a placeholder unless it has one. */
int spec_bound_add(struct spec_bound *b, const char *text, struct err *e);
/* The text of that name; NULL: none. */
const char *spec_bound_find(const struct spec_bound *b, const char *name);
/* -ENOENT when there is none of that name. */
int spec_bound_remove(struct spec_bound *b, const char *name);
int spec_bound_add_host(struct strlist *to, const char *what, const char *text, struct err *e);
int spec_bound_add_ca(struct spec_bound *b, const char *text, struct err *e);
int spec_bound_add_port(struct spec_bound *b, uint64_t port, struct err *e);
/* Checks that no settings contradict each other. */
int spec_bound_validate(const struct spec_bound *b, bool no_network, struct err *e);

/* Reads a text; the value is not looked at. */
int spec_bound_parse(const char *text, struct subst_secret *ret, struct err *e);
/* HOST or *.SUFFIX, without a path. */
int spec_host_parse(const char *text, struct subst_host *ret, struct err *e);

bool spec_bound_says(const struct subst_secret *x, enum subst_where what);
/* Variables of the guest with its placeholder: NAME, and with sign=aws those that AWS's programs read. The
 * name of number i; NULL: there are no more. */
const char *spec_bound_variable(const struct subst_secret *x, size_t i);

const char *spec_violation_name(enum spec_violation v);
json_t *spec_bound_secrets_json(const struct spec_bound *b);
json_t *spec_bound_ports_json(const struct spec_bound *b); /* with 443 */
json_t *spec_bound_no_verify_json(const struct spec_bound *b);
int spec_bound_from_json(struct spec_bound *b, const json_t *network, struct err *e);
