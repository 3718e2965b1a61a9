/* Secrets that are bound to hosts: the guest gets a placeholder, which is replaced by the value on
 * the way to these hosts (src/intercept). Also the other settings for intercepting TLS.
 *
 *     NAME@HOST[/PATH][,HOST...][,OPTION...]
 *
 *     HOST    a host name, or *.SUFFIX (with and without labels in front); /PATH: what the path of
 *             a request has to begin with
 *     OPTION  method=METHOD            only such requests
 *             in=header:NAME           also allowed in this header; in=query:NAME: this parameter;
 *                                      in=body: in the body
 *             allow-plaintext          may also be sent over http:// (port 80)
 *             sign=aws                 it is an AWS key, ID:SECRET[:TOKEN]: requests signed with
 *                                      the placeholder are re-signed
 *             scrub=response           a value in a response is replaced by the placeholder
 *             placeholder=TEXT         what the guest gets; otherwise msb_ and 40 random characters
 *
 * Texts are kept as given, with their placeholder, and checked when they are set.
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

/* What happens on a placeholder in the wrong place, besides the request not being sent. */
enum spec_violation { VIOLATION_BLOCK, VIOLATION_LOG, VIOLATION_TERMINATE };

struct spec_bound {
    struct strlist secrets; /* NAME@..., one for each NAME */
    enum spec_violation on_violation;
    struct strlist intercept;          /* hosts to intercept without a secret */
    struct strlist bypass;             /* hosts never to intercept */
    struct strlist cas;                /* files with authorities for servers: FILE, or HOST=FILE */
    uint16_t port[SPEC_TLS_PORTS_MAX]; /* where TLS is intercepted, in addition to 443 */
    size_t n_ports;
    char *ca_cert, *ca_key;   /* files: the authority that the guest will trust; NULL: msb's own */
    struct strlist no_verify; /* hosts whose certificates are not verified */
    bool quic;                /* UDP to intercepted hosts without a secret is open */
};

void spec_bound_free(struct spec_bound *b);
/* Whether connections are intercepted at all. */
static inline bool spec_bound_any(const struct spec_bound *b)
{
    return b->secrets.n > 0 || b->intercept.n > 0;
}

/* Adds one, or adds hosts to an existing one with that name; gives it a placeholder unless it has
 * one. */
int spec_bound_add(struct spec_bound *b, const char *text, struct err *e);
/* The text with that name; NULL: none. */
const char *spec_bound_find(const struct spec_bound *b, const char *name);
/* -ENOENT if there is none with that name. */
int spec_bound_remove(struct spec_bound *b, const char *name);
int spec_bound_add_host(struct strlist *to, const char *what, const char *text, struct err *e);
int spec_bound_add_ca(struct spec_bound *b, const char *text, struct err *e);
int spec_bound_add_port(struct spec_bound *b, uint64_t port, struct err *e);
/* Checks that no settings contradict each other. */
int spec_bound_validate(const struct spec_bound *b, bool no_network, struct err *e);

/* Parses a text; does not look at the value. */
int spec_bound_parse(const char *text, struct subst_secret *ret, struct err *e);
/* HOST or *.SUFFIX, without a path. */
int spec_host_parse(const char *text, struct subst_host *ret, struct err *e);

bool spec_bound_says(const struct subst_secret *x, enum subst_where what);
/* The guest's variables that contain its placeholder: NAME, and with sign=aws those that AWS
 * programs read. The name of variable i; NULL: there are no more. */
const char *spec_bound_variable(const struct subst_secret *x, size_t i);

const char *spec_violation_name(enum spec_violation v);
json_t *spec_bound_secrets_json(const struct spec_bound *b);
json_t *spec_bound_ports_json(const struct spec_bound *b); /* with 443 */
json_t *spec_bound_no_verify_json(const struct spec_bound *b);
int spec_bound_from_json(struct spec_bound *b, const json_t *network, struct err *e);
