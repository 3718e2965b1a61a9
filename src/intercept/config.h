/* What the interceptor is told: by the launcher when it starts, and later by `msb modify` and `msb
 * secret set`, over a socket that arrives with LINK_CHANGE (link.h).
 *
 * It contains the values of secrets, so it is never in a file: it is encoded in locked memory, sent
 * through a socket pair, and decoded in locked memory. Both are wiped. The other end is trusted (it
 * has the user's rights), but lengths are checked anyway.
 */
#pragma once

#include "intercept/subst.h"
#include "util/err.h"

enum { CONFIG_MAX = 12 * 1024 * 1024, CONFIG_ROOTS_MAX = 16, CONFIG_PATTERNS_MAX = 64 };
enum { CONFIG_CA_DAYS = 3650, CONFIG_CA_STAYS_DAYS = 3585 }; /* before it is renewed (ca.h) */

/* Certificate authorities that servers are verified with. */
struct config_roots {
    struct subst_host host; /* for these hosts; name "": for all */
    const char *pem;
};

/* Locked memory, excluded from core dumps. */
struct config_vault {
    uint8_t *p;
    size_t size;
};

/* A secret whose value a command mints. */
struct config_mint {
    bool minted, keep;  /* keep: an existing value may be used until it expires */
    bool asked;         /* a new one was requested (mint.h) */
    uint64_t until_ns;  /* CLOCK_MONOTONIC */
    uint64_t failed_ns; /* when minting failed; 0: it did not */
    char why[256];      /* ... and why */
};

struct config {
    struct config_vault raw;  /* all texts below are in here ... */
    struct config_vault *own; /* ... except values that came separately: one for each secret */
    struct subst subst;
    struct config_mint *mint;   /* one for each secret */
    struct subst_host *pattern; /* hosts to intercept without a secret */
    size_t n_patterns;
    struct subst_host *no_verify; /* hosts whose certificates are not verified */
    size_t n_no_verify;
    struct config_roots roots[CONFIG_ROOTS_MAX];
    char *own_pem[CONFIG_ROOTS_MAX]; /* inherited ones */
    size_t n_roots;
    const char *bundle; /* a file with authorities instead of the host's own; NULL: none */
    const char *ca_dir; /* where the certificate authority is kept; NULL: see issuer */
    const char *own_cert,
        *own_key;        /* or files with the user's own; read by the issuer when needed */
    const char *ca_cert; /* the certificate that guests were given: PEM. NULL: none yet */
    /* Or what it issued: a certificate for these hosts, and its key. DER. */
    const uint8_t *issuer_key, *issuer_cert;
    size_t issuer_key_len, issuer_cert_len;
};

/* --- telling --- */

struct config_writer {
    uint8_t *p; /* locked */
    size_t n, size;
    int error;
};
int config_begin(struct config_writer *w, size_t size);
/* What follows, up to the next secret, belongs to this one. */
void config_secret(struct config_writer *w, const char *name, const char *holder,
                   const char *value);
/* The same, with the value that the interceptor already has for that name. */
void config_keep(struct config_writer *w, const char *name, const char *holder);
/* The same, minted by a command when needed; keep: an existing value may be used. */
void config_minted(struct config_writer *w, const char *name, const char *holder, bool keep);
void config_host(struct config_writer *w, const struct subst_host *h);
void config_place(struct config_writer *w, const struct subst_place *p);
void config_pattern(struct config_writer *w, const struct subst_host *h);
void config_no_verify(struct config_writer *w, const struct subst_host *h);
void config_roots(struct config_writer *w, const struct subst_host *host, const char *pem);
void config_ca(struct config_writer *w, const char *dir, const char *cert);
void config_own_ca(struct config_writer *w, const char *cert, const char *key); /* paths */
void config_bundle(struct config_writer *w, const char *path);
void config_issuer(struct config_writer *w, const void *key, size_t key_len, const void *cert,
                   size_t cert_len);
/* Sends it (SOCK_SEQPACKET, blocking). 0 or -errno. */
int config_send(struct config_writer *w, int sock);
void config_end(struct config_writer *w); /* wipes; may be called twice, or on zeros */

/* The reply of `msb-intercept issue` to a configuration: a certificate for its hosts. */
struct config_issued {
    struct err e;
    size_t key_len, cert_len;
    uint8_t key[1024], cert[32 * 1024];
};

/* The outcome, at the start and for a change: sent back over the same socket. */
struct config_reply {
    int32_t code; /* 0: it is in force */
    char text[256];
};

/* --- being told --- */

/* Receives a whole configuration. -EPROTO: it is malformed. */
int config_recv(int sock, struct config **ret);
void config_free(struct config *c); /* wipes; may be NULL */
/* Copies values that `c` lacks from `old`, and always the settings for verifying servers: a change
 * comes through the monitor, and a compromised monitor must not obtain values by sending its own
 * change. So no value may go where it did not go before: -EPERM, with a *name whose hosts or places
 * are not all among the old ones. -ENOENT: `old` has no value for *name either. */
int config_inherit(struct config *c, const struct config *old, const char **name);
/* Forgets all secrets except the named ones. */
void config_cut(struct config *c, const char name[][SUBST_NAME_MAX], size_t n);
/* The first secret that is not among these names; or NULL. */
const char *config_stranger(const struct config *c, const char name[][SUBST_NAME_MAX], size_t n);
/* Sets a value for secret i, valid until then (CLOCK_MONOTONIC). */
int config_set_value(struct config *c, size_t i, const char *value, size_t n, uint64_t until_ns);
/* Forgets minted values that have expired. */
void config_expire(struct config *c, uint64_t now);
/* Whether connections to that host are intercepted. */
bool config_concerns(const struct config *c, const char *host);
/* Whether that server's certificate is verified: always, if a secret is bound to it. */
bool config_verifies(const struct config *c, const char *host);
